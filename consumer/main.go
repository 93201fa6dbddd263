// Command stockpipe-consumer persists the logs of the shards to the ledger. Several of them share the shards.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/stockpipe/stockpipe/consumer/consumerapp"
	"github.com/stockpipe/stockpipe/pkg/config"
	"github.com/stockpipe/stockpipe/pkg/service"
)

func main() {
	var settings consumerapp.Config
	config.Parse(consumerapp.Name, consumerapp.Description, &settings)
	ctx, stop := service.WithSignals(context.Background())
	err := consumerapp.Run(ctx, settings)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", consumerapp.Name, err)
		os.Exit(1)
	}
}
