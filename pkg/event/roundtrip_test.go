package event_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"pgregory.net/rapid"
)

// edges draws mostly small numbers, and the bounds often enough.
func edges(low, high int64) *rapid.Generator[int64] {
	return rapid.OneOf(rapid.Int64Range(low, min(high, low+5)), rapid.SampledFrom([]int64{low, high, max(low, high-1)}), rapid.Int64Range(low, high))
}

func anyLines(low, high int64) *rapid.Generator[stock.Lines] {
	return rapid.Custom(func(t *rapid.T) stock.Lines {
		skus := rapid.SliceOfNDistinct(edges(1, stock.MaxStockQuantity), 1, 6, rapid.ID).Draw(t, "skus")
		lines := make(stock.Lines, len(skus))
		for i, sku := range skus {
			quantity := edges(low, high).Draw(t, "quantity")
			lines[i] = stock.Line{SKU: sku, Asked: quantity, Now: quantity}
			for j := i; j > 0 && lines[j-1].SKU > lines[j].SKU; j-- {
				lines[j-1], lines[j] = lines[j], lines[j-1]
			}
		}
		return lines
	})
}

// The generators are made for each test: one that tests share is a data race inside rapid.
func anyOperation() *rapid.Generator[stock.Operation] {
	return rapid.Custom(func(t *rapid.T) stock.Operation {
		kind := stock.Kind(rapid.SampledFrom([]byte("RSCLXEUPMNTO")).Draw(t, "kind"))
		op := stock.Operation{Kind: kind, ID: rapid.StringMatching(`[A-Za-z0-9._:-]{1,64}`).Draw(t, "id")}
		switch kind {
		case stock.Reserve, stock.Sale:
			op.Buyer = rapid.StringMatching(`[A-Za-z0-9._:@+-]{0,64}`).Draw(t, "buyer")
			op.Lines = anyLines(1, stock.MaxLineQuantity).Draw(t, "lines")
			op.Known, op.Partial = rapid.Bool().Draw(t, "known"), rapid.Bool().Draw(t, "partial")
			if kind == stock.Reserve {
				op.TTL = edges(stock.MinTTLMillis, stock.MaxTTLMillis).Draw(t, "ttl")
			}
			op.Attempt = edges(1, stock.MaxAttempt).Draw(t, "attempt")
		case stock.Confirm, stock.Release, stock.LateConfirm:
			op.Attempt = edges(1, stock.MaxAttempt-1).Draw(t, "attempt")
			if rapid.Bool().Draw(t, "named") {
				op.Lines = anyLines(0, stock.MaxLineQuantity).Draw(t, "results")
				for i := range op.Lines {
					op.Lines[i].Asked = 0
				}
			}
		case stock.Expire:
			op.Attempt = edges(1, stock.MaxAttempt).Draw(t, "attempt")
		case stock.Extend:
			op.Attempt = edges(1, stock.MaxAttempt).Draw(t, "attempt")
			op.Until = edges(0, stock.MaxStockQuantity).Draw(t, "until")
		case stock.Replace:
			op.Attempt = edges(1, stock.MaxAttempt).Draw(t, "attempt")
			op.Lines = anyLines(1, stock.MaxLineQuantity).Draw(t, "lines")
		case stock.Movement:
			drawMovement(t, &op)
		case stock.NewSKU:
			op.ID = "~~" + op.ID
			op.Deadline = edges(0, stock.MaxStockQuantity).Draw(t, "deadline")
			op.SKU = rapid.OneOf(rapid.StringN(1, 16, stock.MaxSKUBytes), rapid.SampledFrom([]string{"tea", "%41", "a}b|c;d,e f", "🫖", "שלום"})).
				Filter(func(s string) bool { return stock.CheckSKU("sku", s) == nil }).Draw(t, "sku")
			op.Lines = anyLines(0, stock.MaxMovementQuantity).Draw(t, "opening")[:1]
		case stock.Configure:
			op.Lines = stock.Lines{{SKU: edges(1, stock.MaxStockQuantity).Draw(t, "sku")}}
			op.Change = stock.Change{
				Opens: edges(-1, stock.MaxStockQuantity).Draw(t, "opens"), Limit: edges(-1, stock.MaxMovementQuantity).Draw(t, "limit"),
				Frozen: stock.Switch(rapid.IntRange(-1, 1).Draw(t, "frozen")), Closed: stock.Switch(rapid.IntRange(-1, 1).Draw(t, "closed")),
			}
		case stock.Opened:
			op.ID, op.Continues = "~~open", anyPosition().Draw(t, "continues")
		}
		return op
	})
}

func anySettings() *rapid.Generator[stock.Settings] {
	return rapid.Custom(func(t *rapid.T) stock.Settings {
		return stock.Settings{
			OpensMillis: edges(0, stock.MaxStockQuantity).Draw(t, "opens"), Frozen: rapid.Bool().Draw(t, "frozen"),
			Closed: rapid.Bool().Draw(t, "closed"), Limit: edges(0, stock.MaxMovementQuantity).Draw(t, "limit"),
		}
	})
}

func anyPosition() *rapid.Generator[stock.Position] {
	return rapid.Custom(func(t *rapid.T) stock.Position {
		return stock.Position{Epoch: edges(0, stock.MaxStockQuantity).Draw(t, "epoch"), Seq: edges(0, stock.MaxStockQuantity).Draw(t, "seq")}
	})
}

func anyQuantities() *rapid.Generator[stock.Quantities] {
	return rapid.Custom(func(t *rapid.T) stock.Quantities {
		const third = stock.MaxStockQuantity / 3
		return stock.Quantities{Available: edges(0, third).Draw(t, "available"), Held: edges(0, third).Draw(t, "held"), Committed: edges(0, third).Draw(t, "committed")}
	})
}

func TestEntriesReadBackAsWritten(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		e := event.Entry{Position: anyPosition().Draw(t, "position"), AtMillis: edges(0, stock.MaxStockQuantity).Draw(t, "at")}
		for _, op := range rapid.SliceOfN(anyOperation(), 1, 6).Draw(t, "operations") {
			// Several orders of one body, as a sale has them.
			for _, id := range rapid.SliceOfN(rapid.SampledFrom([]string{"", "2", "3"}), 1, 4).Draw(t, "with the same body") {
				op := op
				op.ID = op.ID[:min(len(op.ID), 60)] + id
				e.Ops = append(e.Ops, op)
			}
		}
		for range rapid.IntRange(0, 3).Draw(t, "after-images") {
			e.After = append(e.After, event.After{SKU: edges(1, stock.MaxStockQuantity).Draw(t, "sku"), Quantities: anyQuantities().Draw(t, "quantities")})
		}
		raw := e.Raw()
		got, err := raw.Parse()
		if diff := cmp.Diff(e, got); diff != "" || err != nil {
			t.Fatalf("%+v: error %v\n%s", raw, err, diff)
		}
		if again := got.Raw(); again != raw {
			t.Fatalf("%+v\nprints back as\n%+v", raw, again)
		}
		back := event.RawOf(raw.ID, map[string]any{"v": raw.Version, "t": raw.At, "o": raw.Ops, "a": raw.After})
		if back != raw {
			t.Fatalf("%+v", back)
		}
	})
}

func drawMovement(t *rapid.T, op *stock.Operation) {
	op.ID = "~" + op.ID
	op.Deadline = edges(0, stock.MaxStockQuantity).Draw(t, "deadline")
	op.Reason = rapid.StringMatching(`[A-Za-z0-9._-]{1,32}`).Draw(t, "reason")
	op.Refused = rapid.Bool().Draw(t, "refused")
	const most = stock.MaxMovementQuantity
	low, high, ordered := int64(-most), int64(most), false
	op.Document = rapid.SampledFrom([]string{"receive", "adjust", "count", "return", "fulfil", "cancel"}).Draw(t, "document")
	switch op.Document {
	case stock.DocumentReturn:
		low, ordered = 0, rapid.Bool().Draw(t, "ordered")
	case stock.DocumentFulfil:
		high, ordered = -1, true
	case stock.DocumentCancel:
		low, ordered = 1, true
		op.Buyer = rapid.StringMatching(`[A-Za-z0-9._:@+-]{0,64}`).Draw(t, "buyer")
	}
	op.Lines = anyLines(low, high).Draw(t, "movements")
	if ordered {
		op.Order = stock.OrderRef{
			ID:  rapid.StringMatching(`[A-Za-z0-9._:-]{1,64}`).Draw(t, "order"),
			Key: edges(1, stock.MaxAttempt).Draw(t, "key"), Asked: edges(0, stock.MaxAttempt).Draw(t, "asked"),
		}
	}
}

func TestRecordsAndFieldsReadBackAsWritten(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := stock.Reservation{
			ID: "o", Receipt: stock.Receipt{Shard: 2, Position: anyPosition().Draw(t, "position"), Index: rapid.IntRange(0, 255).Draw(t, "index")},
			State: rapid.SampledFrom([]stock.State{stock.Held, stock.Confirmed, stock.Released, stock.Expired, stock.Cancelled, stock.Fulfilled, stock.Done, stock.Refused}).Draw(t, "state"),
		}
		if r.State == stock.Done || r.State == stock.Refused {
			r.Lines = anyLines(-stock.MaxMovementQuantity, stock.MaxMovementQuantity).Draw(t, "movements")
		} else {
			r.Attempt, r.ExpiresMillis = edges(1, stock.MaxAttempt).Draw(t, "attempt"), edges(0, stock.MaxStockQuantity).Draw(t, "expires")
			r.Buyer = rapid.StringMatching(`[A-Za-z0-9._:@+-]{0,64}`).Draw(t, "buyer")
			r.Lines = anyLines(0, stock.MaxLineQuantity).Draw(t, "lines")
			for i := range r.Lines {
				l := &r.Lines[i]
				l.Now = edges(0, stock.MaxLineQuantity).Draw(t, "now")
				if l.Fulfilled = edges(0, stock.MaxLineQuantity).Draw(t, "fulfilled"); l.Asked+l.Now == 0 {
					l.Fulfilled = max(1, l.Fulfilled)
				}
			}
			lines, err := event.ParseLines(event.FormatLines(r.Lines))
			if diff := cmp.Diff(r.Lines, lines); diff != "" || err != nil {
				t.Fatal(err, diff)
			}
		}
		text := event.FormatRecord(&r)
		got, err := event.ParseRecord(2, "o", text)
		if diff := cmp.Diff(r, got); diff != "" || err != nil {
			t.Fatalf("%s: error %v\n%s", text, err, diff)
		}
		f := event.Field{Quantities: anyQuantities().Draw(t, "quantities"), Settings: anySettings().Draw(t, "settings")}
		if back, err := event.ParseField(f.String()); back != f || err != nil {
			t.Fatalf("%s: %+v, error %v", f, back, err)
		}
	})
}

// What CheckOperation lets through must parse as itself: one operation that does not would refuse a whole call.
func TestWhatIsSentReadsBackAsItself(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		op := anyOperation().Draw(t, "operation")
		for range rapid.IntRange(0, 3).Draw(t, "damages") {
			switch rapid.IntRange(0, 9).Draw(t, "damage") {
			case 0:
				op.ID = rapid.SampledFrom([]string{"", "~", "~~~x", "a b", "a,b", "a;b", "a\x00", "~a", strings.Repeat("i", 65)}).Draw(t, "id")
			case 1:
				op.Buyer = rapid.SampledFrom([]string{"u", "a b", "a,b", "a|b", "a;b", "é", strings.Repeat("u", 65)}).Draw(t, "buyer")
			case 2:
				op.Attempt = rapid.Int64().Draw(t, "attempt")
			case 3:
				op.TTL = rapid.Int64().Draw(t, "ttl")
			case 4:
				op.Lines = append(op.Lines, stock.Line{SKU: rapid.Int64Range(-1, 9).Draw(t, "sku"), Asked: rapid.Int64Range(-9, 9).Draw(t, "asked")})
			case 5:
				op.Lines = nil
			case 6:
				op.Document = rapid.SampledFrom([]string{"", "a|b", "a b", "receive"}).Draw(t, "document")
			case 7:
				op.SKU = rapid.SampledFrom([]string{"", "\xff", "a\x00b", strings.Repeat("s", 65), "tea"}).Draw(t, "sku")
			case 8:
				op.Kind = stock.Kind(rapid.Byte().Draw(t, "kind"))
			case 9:
				op.Deadline = rapid.Int64().Draw(t, "deadline")
			}
		}
		err := event.CheckOperation(&op)
		var field *stock.FieldError
		if err != nil {
			if !errors.As(err, &field) || field.Remedy == "" {
				t.Fatalf("%v is no answer for a user", err)
			}
			return
		}
		text := string(event.AppendOperations(nil, []stock.Operation{op}))
		ops, err := event.ParseOperations(text)
		if err != nil || len(ops) != 1 || string(event.AppendOperations(nil, ops)) != text {
			t.Fatalf("%+v is sent as %q, which reads as %+v, error %v", op, text, ops, err)
		}
	})
}

func TestWhatOnlyTheLibrarySaysIsNotSent(t *testing.T) {
	t.Parallel()
	one := stock.Lines{{SKU: 1, Asked: 1, Now: 1}}
	for name, op := range map[string]stock.Operation{
		"opened":                {Kind: stock.Opened, ID: "~~open"},
		"refused":               {Kind: stock.Movement, ID: "~a", Document: "adjust", Reason: "x", Lines: one, Refused: true},
		"buyer of a confirm":    {Kind: stock.Confirm, ID: "a", Attempt: 1, Buyer: "u"},
		"settings of no SKU":    {Kind: stock.Configure, ID: "~~t"},
		"settings of two":       {Kind: stock.Configure, ID: "~~t", Lines: stock.Lines{{SKU: 1}, {SKU: 2}}},
		"new without a SKU":     {Kind: stock.NewSKU, ID: "~~n", SKU: "tea"},
		"a limit below none":    {Kind: stock.Configure, ID: "~~t", Lines: stock.Lines{{SKU: 1}}, Change: stock.Change{Opens: stock.Keep, Limit: -2}},
		"no switch":             {Kind: stock.Configure, ID: "~~t", Lines: stock.Lines{{SKU: 1}}, Change: stock.Change{Frozen: 2}},
		"last late confirm":     {Kind: stock.LateConfirm, ID: "a", Attempt: stock.MaxAttempt},
		"partial in a reserve":  {Kind: stock.Reserve, ID: "a", Attempt: 1, TTL: 1000, Lines: stock.Lines{{SKU: 1, Asked: 2, Now: 1}}},
		"taken by a partial":    {Kind: stock.Reserve, ID: "a", Attempt: 1, TTL: 1000, Partial: true, Lines: stock.Lines{{SKU: 1, Asked: 2, Now: 1}}},
		"shipped in a sale":     {Kind: stock.Sale, ID: "a", Attempt: 1, Lines: stock.Lines{{SKU: 1, Asked: 2, Now: 2, Fulfilled: 1}}},
		"a replace by nothing":  {Kind: stock.Replace, ID: "a", Attempt: 1},
		"a replace by less":     {Kind: stock.Replace, ID: "a", Attempt: 1, Lines: stock.Lines{{SKU: 1, Asked: 2, Now: 1}}},
		"results below nothing": {Kind: stock.Release, ID: "a", Attempt: 1, Lines: stock.Lines{{SKU: 1, Now: -1}}},
		"an order of a receipt": {Kind: stock.Movement, ID: "~a", Document: "receive", Reason: "x", Lines: one, Order: stock.OrderRef{ID: "o", Key: 1}},
		"a cancel of nothing":   {Kind: stock.Movement, ID: "~a", Document: "cancel", Reason: "x", Lines: one},
		"an order without id":   {Kind: stock.Movement, ID: "~a", Document: "cancel", Reason: "x", Lines: one, Order: stock.OrderRef{Key: 1}},
		"buyer of a return":     {Kind: stock.Movement, ID: "~a", Document: "return", Reason: "x", Lines: one, Buyer: "u"},
		"lines out of order":    {Kind: stock.Sale, ID: "a", Attempt: 1, Lines: stock.Lines{{SKU: 2, Asked: 1, Now: 1}, {SKU: 1, Asked: 1, Now: 1}}},
		"the same SKU twice":    {Kind: stock.Sale, ID: "a", Attempt: 1, Lines: stock.Lines{{SKU: 2, Asked: 1, Now: 1}, {SKU: 2, Asked: 1, Now: 1}}},
		"a letter without form": {Kind: stock.Transfer, ID: "a", Attempt: 1},
	} {
		var field *stock.FieldError
		if err := event.CheckOperation(&op); !errors.As(err, &field) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
