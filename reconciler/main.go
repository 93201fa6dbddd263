// Command stockpipe-reconciler opens shards, ends holds, finishes documents, audits both stores and repairs what
// differs. Several may run side by side.
package main

import (
	"context"
	"os"

	"github.com/stockpipe/stockpipe/pkg/config"
	"github.com/stockpipe/stockpipe/pkg/service"
	"github.com/stockpipe/stockpipe/reconciler/reconcilerapp"
)

func main() {
	var settings reconcilerapp.Config
	command := config.Parse(reconcilerapp.Name, reconcilerapp.Description, &settings)
	ctx, stop := service.WithSignals(context.Background())
	code := reconcilerapp.Run(ctx, command, settings, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
