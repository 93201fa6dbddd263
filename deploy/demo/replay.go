package main

import (
	"context"
	"fmt"

	"github.com/stockpipe/stockpipe/deploy/demo/internal/orderfile"
	"github.com/stockpipe/stockpipe/deploy/demo/internal/replay"
	"github.com/stockpipe/stockpipe/deploy/demo/internal/verdict"
)

// replay sends an order file and judges what came of it.
func (w *show) replay(ctx context.Context, file *orderfile.File) (verdict.Verdict, error) {
	w.panel.Say("%s: %s invoices, %s lines: %s sales, %s credits (%s lines), %s other negative lines, %s SKUs; %s units out, %s back, net %s",
		w.state.File, verdict.Count(file.Invoices), verdict.Count(file.Lines), verdict.Count(len(file.Sales)), verdict.Count(file.Credits),
		verdict.Count(file.CreditLines), verdict.Count(file.Adjusted), verdict.Count(len(file.SKUs)),
		verdict.Count(file.UnitsOut), verdict.Count(file.UnitsIn), verdict.Count(file.Net()))
	if w.state.Resumed() {
		w.panel.Say("resuming: everything is sent again, and what was taken already is recognised")
	}
	r := replay.New(file, w.pipeline.APIs(), w.state.Resumed())
	defer r.Close()
	if err := w.live(ctx, func() string { return replayLine(r, file) }, r.Run); err != nil {
		return nil, err
	}
	facts, err := w.replayFacts(ctx, r, file)
	if err != nil {
		return nil, err
	}
	return verdict.Replay(facts), nil
}

func replayLine(r *replay.Replay, file *orderfile.File) string {
	movements := r.Credits.Load() + r.Adjusts.Load()
	return fmt.Sprintf("SKUs %s/%s  orders %s/%s  shipped %s  documents %s/%s  known %s  refused %s",
		verdict.Count(r.Openings.Load()), verdict.Count(len(file.SKUs)), verdict.Count(r.Sales.Load()), verdict.Count(len(file.Sales)),
		verdict.Count(r.Shipped.Load()), verdict.Count(movements), verdict.Count(len(file.Movements)), verdict.Count(r.Known.Load()), verdict.Count(r.Refused.Load()))
}

func (w *show) replayFacts(ctx context.Context, r *replay.Replay, file *orderfile.File) (verdict.ReplayFacts, error) {
	f := verdict.ReplayFacts{
		File: file, Sold: r.Sales.Load(), Shipped: r.Shipped.Load(), Credited: r.Credits.Load(), Adjusted: r.Adjusts.Load(), Refusals: r.Refusals(),
	}
	var err error
	if f.Health, err = w.settle(ctx); err != nil {
		return f, err
	}
	ids := make([]string, len(file.Sales))
	for i, sale := range file.Sales {
		ids[i] = sale.Order
	}
	if f.Ledger, err = w.pipeline.Orders(ctx, ids); err != nil {
		return f, err
	}
	names := make([]string, len(file.SKUs))
	for i, sku := range file.SKUs {
		names[i] = sku.Text
	}
	f.Stock, err = w.pipeline.Stock(ctx, names)
	return f, err
}
