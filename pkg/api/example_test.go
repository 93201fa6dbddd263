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

// A confirmed order is shipped in parcels. Each parcel is a document with an id of its own, so a call that is sent again
// ships nothing twice.
func ExampleClient_Fulfil() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	shop := api.NewClient("http://127.0.0.1:8080")

	_, err := shop.Fulfil(ctx, "o-1", &api.AmendRequest{
		DocumentID: "parcel-4711",
		Lines:      []api.Line{{SKU: "tea", Quantity: 1}},
	})
	var refused *api.Problem
	switch {
	case errors.As(err, &refused) && refused.Code == api.CodeInsufficient:
		fmt.Println("not that much is left of the order:", refused.Lines)
		return
	case err != nil:
		log.Fatal(err)
	}
	// What is left is not sent after all: no lines mean all of it.
	if _, err := shop.Cancel(ctx, "o-1", &api.AmendRequest{DocumentID: "rest-of-o-1"}); err != nil {
		log.Fatal(err)
	}
}

// A cart that changes keeps its hold: its own units count as available.
func ExampleClient_Replace() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	shop := api.NewClient("http://127.0.0.1:8080")

	cart, err := shop.Replace(ctx, "o-1", api.ReplaceRequest{Lines: []api.Line{{SKU: "tea", Quantity: 3}}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(cart.Lines)
	held, err := shop.Extend(ctx, "o-1", api.ExtendRequest{Until: time.Now().Add(20 * time.Minute).Format(time.RFC3339)})
	fmt.Println(held.ExpiresAt, err)
}
