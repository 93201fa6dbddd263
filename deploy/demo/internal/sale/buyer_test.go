package sale

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/pkg/api"
)

func TestWhatABuyerMakesOfItsAnswers(t *testing.T) {
	t.Parallel()
	taken := reply{reservation: api.Reservation{Receipt: "0.1.7.0", Attempt: 1}}
	replayed := reply{reservation: api.Reservation{Receipt: "0.1.7.0", Attempt: 1, Replayed: true}}
	elsewhere := reply{reservation: api.Reservation{Receipt: "0.1.8.0", Attempt: 1, Replayed: true}}
	refused := func(code, reason string) reply {
		return reply{err: fmt.Errorf("ask: %w", &api.Problem{Code: code, Reason: reason})}
	}
	for _, c := range []struct {
		name    string
		replies []reply
		told    Told
		twice   string
	}{
		{"taken", []reply{taken}, Held, ""},
		{"double click", []reply{replayed, taken}, Held, ""},
		{"taken twice", []reply{taken, taken}, Held, "2 of 2 equal requests were carried out"},
		{"two receipts", []reply{taken, elsewhere}, Held, "receipts 0.1.7.0 and 0.1.8.0"},
		{"sold out", []reply{refused(api.CodeSoldOut, "")}, Refused, ""},
		{"one click too early", []reply{refused(api.CodeSoldOut, ""), taken}, Held, ""},
		{"closed", []reply{refused(api.CodeSoldOut, ""), refused(api.CodeClosed, "fenced")}, Closed, ""},
		{"no answer", []reply{{err: fmt.Errorf("%w (%w)", api.ErrUnknown, &api.Problem{Code: api.CodeClosed})}}, Unknown, ""},
		{"cut off", []reply{{err: errors.New("connection refused")}}, Unknown, ""},
		{"unknown order", []reply{refused(api.CodeUnknownOrder, "")}, Vanished, ""},
		{"lost", []reply{{err: fmt.Errorf("await: %w", errLost)}}, Vanished, ""},
		{"a code that means a mistake of ours", []reply{refused(api.CodeInvalid, "")}, Unknown, ""},
	} {
		o := &Order{}
		new(Sale).conclude(o, Held, c.replies)
		if o.Told != c.told || (c.twice == "") != (o.Twice == "") || !strings.Contains(o.Twice, c.twice) {
			t.Errorf("%s: told %q, twice %q; want %q, %q", c.name, o.Told, o.Twice, c.told, c.twice)
		}
		if o.Accepted != (c.told == Held) {
			t.Errorf("%s: accepted %v", c.name, o.Accepted)
		}
	}
}

func TestAFrozenArticleEndsTheRush(t *testing.T) {
	t.Parallel()
	s := &Sale{}
	if s.judge(&api.Problem{Code: api.CodeClosed, Reason: "stale"}); s.over() {
		t.Error("one closed answer ended the rush")
	}
	if s.judge(&api.Problem{Code: api.CodeClosed, Reason: "frozen"}); !s.over() {
		t.Error("the rush goes on")
	}
}

func TestBuyersComeEarlyAndAllInTime(t *testing.T) {
	t.Parallel()
	const of = 1000
	var half int
	last := time.Duration(-1)
	for n := range of {
		at := arrival(n, of, 10*time.Second)
		if at < last || at >= 10*time.Second {
			t.Fatalf("buyer %d arrives at %v, the one before at %v", n, at, last)
		}
		if last = at; at < 5*time.Second {
			half++
		}
	}
	if half < 600 {
		t.Errorf("%d of %d come in the first half", half, of)
	}
}

func TestAnOrderTakesItsLinesFromOneShard(t *testing.T) {
	t.Parallel()
	s := &Sale{plan: Plan{Run: "run1"}, articles: []Article{{SKU: "hot", Shard: 0}, {SKU: "same", Shard: 0}, {SKU: "other", Shard: 3}}}
	shard := map[string]int{"hot": 0, "same": 0, "other": 3}
	kinds := map[int]int{}
	for n := range 2000 {
		lines := s.buyer(n).order.Lines
		kinds[len(lines)]++
		for _, l := range lines {
			if shard[l.SKU] != shard[lines[0].SKU] {
				t.Fatalf("order %d takes from two shards: %v", n, lines)
			}
		}
	}
	if kinds[1] == 0 || kinds[2] == 0 {
		t.Errorf("orders by number of lines: %v", kinds)
	}
}

func TestACancelledSaleReturns(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s := New(Plan{Run: "run1", Buyers: 1000, Lasts: time.Hour}, []string{"http://127.0.0.1:1"})
	defer s.Close()
	s.articles = []Article{{SKU: "hot"}}
	if err := s.Rush(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestQuantiles(t *testing.T) {
	t.Parallel()
	var times Times
	if times.Quantile(0.5) != 0 {
		t.Error("no calls have a quantile")
	}
	for n := range 100 {
		times.add(time.Duration(100-n) * time.Millisecond)
	}
	if got := [2]time.Duration{times.Quantile(0.5), times.Quantile(0.99)}; got != [2]time.Duration{51 * time.Millisecond, 100 * time.Millisecond} {
		t.Errorf("got %v", got)
	}
}
