package api_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/stockpipe/stockpipe/pkg/api"
)

// The README shows this body; TestReadmeShowsTheExample in pkg/tidy keeps the two equal.
func ExampleClient() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	shop := api.NewClient("http://127.0.0.1:8080")

	hold, err := shop.Reserve(ctx, &api.ReserveRequest{
		OrderID: api.NewOrderID(), // made before sending: sent again, it is the same order
		Buyer:   "u77",
		Lines:   []api.Line{{SKU: "tea", Quantity: 2}},
		TTL:     900, // seconds
	})
	var refused *api.Problem
	switch {
	case errors.As(err, &refused) && refused.Code == api.CodeSoldOut:
		fmt.Println("sold out:", refused.Lines)
		return
	case errors.Is(err, api.ErrUnknown):
		fmt.Println("no answer: ask for the order, or send the same again")
		return
	case err != nil:
		log.Fatal(err)
	}

	paid, err := shop.Confirm(ctx, hold.OrderID, api.AttemptRequest{})
	if err != nil {
		log.Fatal(err)
	}
	if !paid.IsPersisted() { // Redis has it, Postgres had not within 2 s
		standing, err := shop.Await(ctx, paid.OrderID, paid.Receipt)
		fmt.Println(standing, err) // persisted or lost
	}
}
