package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/stockpipe/stockpipe/deploy/demo/internal/sale"
	"github.com/stockpipe/stockpipe/deploy/demo/internal/verdict"
	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// salePatience is how much longer than planned a sale may last.
const salePatience = 3 * time.Minute

// sale plays one and judges it.
func (w *show) sale(ctx context.Context) (verdict.Verdict, error) {
	s := sale.New(sale.Plan{
		Run: fmt.Sprintf("run%d", w.state.Runs), Buyers: w.settings.Buyers, Units: w.settings.Units,
		SKUs: w.settings.SKUs, Lasts: w.settings.Lasts,
	}, w.pipeline.APIs())
	defer s.Close()
	articles, err := s.Stock(ctx)
	if err != nil {
		return nil, err
	}
	if err := w.stocked(ctx, articles); err != nil {
		return nil, err
	}
	bounded, cancel := context.WithTimeout(ctx, w.settings.Lasts+salePatience)
	defer cancel()
	line := func() string {
		return fmt.Sprintf("orders %s/%s  accepted %s  refused %s  sold %s/%s", verdict.Count(s.Decided.Load()), verdict.Count(w.settings.Buyers),
			verdict.Count(s.Accepted.Load()), verdict.Count(s.Refused.Load()), verdict.Count(s.Sold.Load()), verdict.Count(w.settings.Units))
	}
	err = w.live(bounded, line, func(ctx context.Context) error {
		if err := s.Rush(ctx); err != nil {
			return err
		}
		return s.Second(ctx)
	})
	if err != nil && ctx.Err() != nil {
		return nil, err
	}
	facts, err := w.saleFacts(ctx, s, articles)
	if err != nil {
		return nil, err
	}
	w.times(s)
	return verdict.Sale(facts), nil
}

// stocked tells what is for sale, and how to look at it.
func (w *show) stocked(ctx context.Context, articles []sale.Article) error {
	names := make([]string, len(articles))
	for i, a := range articles {
		names[i] = a.SKU
	}
	figures, err := w.pipeline.Stock(ctx, names[:1])
	if err != nil {
		return err
	}
	hot := articles[0]
	w.panel.Say("for sale: %s units of %s, and %s. To see the first:", verdict.Count(hot.Opening), hot.SKU, several(len(articles)-1, "other article"))
	w.panel.Say("  %s", w.pipeline.Peek(figures[hot.SKU]))
	w.panel.Say("  curl %s/v1/stock/%s", w.pipeline.APIs()[0], hot.SKU)
	return w.sharing(ctx)
}

// saleFacts gathers what the verdict needs. The stock is read last, after the audit, so that nothing that happened
// to it goes unseen.
func (w *show) saleFacts(ctx context.Context, s *sale.Sale, articles []sale.Article) (verdict.SaleFacts, error) {
	f := verdict.SaleFacts{Orders: s.Orders(), Articles: articles, Ledger: map[string]stock.Reservation{}, Lost: map[string]bool{}}
	var err error
	if f.Health, err = w.settle(ctx); err != nil {
		return f, err
	}
	recent, err := w.pipeline.Recent(ctx)
	if err != nil {
		return f, err
	}
	for _, r := range recent {
		if strings.HasPrefix(r.ID, fmt.Sprintf("run%d-", w.state.Runs)) {
			f.Ledger[r.ID] = r
		}
	}
	for _, o := range f.Orders {
		if o.Accepted && verdict.Differs(o, f.Ledger) {
			standing, err := s.Standing(ctx, o)
			f.Lost[o.ID] = err == nil && standing == api.StandingLost
		}
	}
	var names []string
	for _, a := range articles {
		names = append(names, a.SKU)
	}
	f.Stock, err = w.pipeline.Stock(ctx, names)
	return f, err
}

// times tells how long the buyers waited.
func (w *show) times(s *sale.Sale) {
	for _, t := range []struct {
		what  string
		times *sale.Times
	}{{"reserve", &s.Reserves}, {"confirm", &s.Confirms}} {
		w.panel.Say("%s: half of the answers within %.1f ms, 99 %% within %.1f ms", t.what, millis(t.times.Quantile(0.5)), millis(t.times.Quantile(0.99)))
	}
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
