// Command stockpipe-producer serves the HTTP API: it reserves stock in Redis and answers. Any number of them may
// run side by side.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/stockpipe/stockpipe/pkg/config"
	"github.com/stockpipe/stockpipe/pkg/service"
	"github.com/stockpipe/stockpipe/producer/producerapp"
)

func main() {
	var settings producerapp.Config
	config.Parse(producerapp.Name, producerapp.Description, &settings)
	ctx, stop := service.WithSignals(context.Background())
	err := producerapp.Run(ctx, settings)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", producerapp.Name, err)
		os.Exit(1)
	}
}
