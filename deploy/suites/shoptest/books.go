package shoptest

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/api"
)

// Books are the stories of a mix beside what Postgres has of them.
type Books struct {
	*Mix
	stock  map[string]int64    // SKU → units that were supplied
	orders map[string]standing // by Postgres, the newest attempt
	papers map[string]paper

	Stories, Steps, Documents int
	Lost, Open, Refused       int            // steps: reported lost, without an answer that tells, refused
	Done                      map[string]int // steps by verb that were carried out
	AtLimit                   int            // orders that a limit refused
	moved                     map[string]int64
	taken                     map[string]int64
	have                      map[string]int64 // buyer → units of the limited SKU
	blurred                   map[string]bool  // buyers of whom something was lost or is not known
	faults                    []string
}

// A paper is a document in Postgres, with how often each outcome of it stands in the events.
type paper struct {
	state            string
	applied, refused int
	units            int64 // of its movement
}

func (b *Books) String() string {
	return fmt.Sprintf("mix: %d stories, %d steps %v, %d documents each once; %d refused, %d at the limit, %d reported lost, %d without an answer, 0 silent, 0 oversold",
		b.Stories, b.Steps, b.Done, b.Documents, b.Refused, b.AtLimit, b.Lost, b.Open)
}

// Judge compares what every caller of a stopped mix was told with what stands, order by order and document by document.
func (m *Mix) Judge() *Books {
	s := m.Shop
	s.T.Helper()
	m.Stop()
	if len(s.Living(Reconciler)) == 0 {
		s.Start(Reconciler) // it finishes documents
	}
	s.Drain()
	eventually(s, func() error {
		if n := One[int64](s, `select count(*) from stock_document where starts_with(id, $1) and state = 'written'`, m.Run); n > 0 {
			return fmt.Errorf("%d documents are not settled", n)
		}
		return nil
	})
	s.Drain()
	if m.Limited != "" { // forgetting, and whatever else still moves, is no matter of the mix
		eventually(s, func() error { return s.Counted(m.Limited, s.bought(m.Limited)) })
	}
	b := &Books{Mix: m, stock: m.Units, Done: map[string]int{}}
	b.resolve()
	b.read()
	b.compare()
	for _, fault := range b.faults {
		s.T.Error(fault)
	}
	return b
}

// compare judges what was resolved and read; it may be done again, of copies.
func (b *Books) compare() {
	b.moved, b.taken, b.have, b.blurred = map[string]int64{}, map[string]int64{}, map[string]int64{}, map[string]bool{}
	for _, story := range b.stories {
		b.story(story)
	}
	b.strangers()
	b.shelves()
	b.limits()
}

// fault notes what must not be.
func (b *Books) fault(format string, arguments ...any) {
	b.faults = append(b.faults, fmt.Sprintf(format, arguments...))
}

// resolve asks with every receipt what became of it. Whatever is not persisted must be reported lost.
func (b *Books) resolve() {
	t := b.Shop.T
	t.Helper()
	Crowd(len(b.stories), 16, func(i int) {
		story := b.stories[i]
		asked := map[string]string{}
		for _, step := range story.Steps {
			receipt := step.receipt()
			if receipt == "" || !step.done() {
				continue
			}
			if asked[receipt] == "" {
				ctx, cancel := context.WithTimeout(t.Context(), Patience)
				standing, err := b.Shop.Patient(i).Await(ctx, story.Order, receipt)
				cancel()
				if err != nil {
					t.Errorf("receipt %s is %q (%v) of %v", receipt, standing, err, story)
				}
				asked[receipt] = standing
			}
			step.lost = asked[receipt] == api.StandingLost
			if step.lost && (step.Told.Level == api.Persisted || step.Document.Level == api.Persisted) {
				t.Errorf("told persisted and reported lost: %v of %v", step, story)
			}
		}
	})
}

// read takes the orders and documents of the mix from Postgres.
func (b *Books) read() {
	s := b.Shop
	s.T.Helper()
	b.orders, b.papers = map[string]standing{}, map[string]paper{}
	rows, err := s.Pool.Query(s.T.Context(), `select r.order_id, r.attempt, r.state, k.sku, l.asked, l.now, l.fulfilled, l.returned
		from reservation r join reservation_line l using (shard, order_id, attempt) join sku k on k.number = l.sku
		where starts_with(r.order_id, $1) order by r.order_id, r.attempt`, b.Run)
	Need(s.T, err)
	var order, state, sku string
	var attempt int64
	var u units
	_, err = pgx.ForEachRow(rows, []any{&order, &attempt, &state, &sku, &u.asked, &u.now, &u.fulfilled, &u.returned}, func() error {
		at, ok := b.orders[order]
		if !ok || at.attempt != attempt {
			at = standing{state: state, attempt: attempt, lines: map[string]units{}}
		}
		if isOver(state) {
			u.now = 0
		}
		at.lines[sku] = u
		b.orders[order] = at
		return nil
	})
	Need(s.T, err)
	rows, err = s.Pool.Query(s.T.Context(), `select d.id, d.state, coalesce((d.lines->0->>'units')::bigint, 0),
		(select count(*) from event e where e.shard = d.shard and e.id = '~' || d.id and starts_with(e.id, '~') and starts_with(e.body, 'M')),
		(select count(*) from event e where e.shard = d.shard and e.id = '~' || d.id and starts_with(e.id, '~') and starts_with(e.body, 'm'))
		from stock_document d where starts_with(d.id, $1)`, b.Run)
	Need(s.T, err)
	var p paper
	var id string
	_, err = pgx.ForEachRow(rows, []any{&id, &p.state, &p.units, &p.applied, &p.refused}, func() error {
		b.papers[id] = p
		return nil
	})
	Need(s.T, err)
}

// story folds the steps that are persisted and wants the order to stand so; where a step has no answer that tells,
// with it or without.
func (b *Books) story(s *Story) {
	b.Stories++
	b.Steps += len(s.Steps)
	var at standing
	might := []standing(nil) // where it may stand besides
	hazy := false            // something was lost, or is not known: what follows may be refused
	brief := false
	for _, step := range s.Steps {
		b.name(s, step)
		brief = brief || step.TTL == 1
		if step.Paper != "" {
			b.paper(s, step)
		}
		switch {
		case !step.settled():
			b.Open++
			hazy = true
			if step.Policy == "partial" { // how much it found is not known either
				guess := *step
				for sku, l := range b.orders[s.Order].lines {
					guess.Told.Lines = append(guess.Told.Lines, api.OrderLine{SKU: sku, Quantity: l.now})
				}
				step = &guess
			}
			might = append(might, at, at.after(step))
			if step.Verb == "confirm" {
				late := *step
				late.Told.Attempt = at.attempt + 1
				might = append(might, at.after(&late))
			}
		case !step.done():
			b.Refused++
			b.refusal(s, step, hazy)
		case step.lost:
			b.Lost++
			hazy = true
		default:
			b.Done[step.Verb]++
			if step.Repeat && step.Paper != "" {
				continue // applied once
			}
			at = at.after(step)
			if told := step.told(); step.Paper == "" && told.String() != at.String() {
				b.fault("a step answers %v, and the order must stand as %v: %v of %v", told, at, step, s)
			}
		}
	}
	stands := b.orders[s.Order]
	might = append(might, at)
	if brief {
		for _, m := range might {
			if m.state == "held" {
				ended := m.clone()
				ended.end("expired")
				might = append(might, ended)
			}
		}
	}
	b.reckon(s, stands, hazy)
	for _, m := range might {
		if m.String() == stands.String() {
			return
		}
	}
	b.fault("it stands as %v in Postgres, and may stand as %v: %v", stands, might, s)
}

// name turns a number back into the name of its SKU: what was decided is answered also while Postgres, which has the
// names, is away.
func (b *Books) name(s *Story, step *Step) {
	for i := range step.Told.Lines {
		l := &step.Told.Lines[i]
		text, numbered := strings.CutPrefix(l.SKU, "#")
		if !numbered {
			continue
		}
		if p := &b.Shop.Plan; p.Postgres == nil && !p.Watched && p.PostgresOf == nil {
			b.fault("a SKU is not named although Postgres was there all the time: %v of %v", step, s)
		}
		for name, number := range b.Shop.Numbers {
			if strconv.FormatInt(number, 10) == text {
				l.SKU = name
			}
		}
	}
}

// refusal wants a reason for it.
func (b *Books) refusal(s *Story, step *Step, hazy bool) {
	code := ""
	if step.Problem != nil {
		code = step.Problem.Code
	}
	switch {
	case code == api.CodeLimit:
		b.AtLimit++
		have, asked := b.have[s.Buyer], int64(0) // of his other orders, and for this one
		for _, l := range step.Lines {
			if l.SKU == b.Limited {
				asked += l.Quantity
			}
		}
		if !hazy && !b.blurred[s.Buyer] && have+asked <= mixLimit {
			b.fault("the limit of %d refused %d of a buyer who has %d: %v of %v", mixLimit, asked, have, step, s)
		}
	case code == api.CodeShortfall && step.Verb == "confirm":
	case step.Verb == "count" && (code == api.CodeCountBusy || code == api.CodeCountOld):
	case hazy:
	default:
		b.fault("no fault excuses the refusal: %v of %v", step, s)
	}
}

// paper wants a document's outcome to stand once, and as it was told.
func (b *Books) paper(s *Story, step *Step) {
	p, there := b.papers[step.Paper]
	if there && p.applied+p.refused != 1 || there && p.state == "applied" != (p.applied == 1) {
		b.fault("document %s is %s, applied %d times and refused %d times: %v", step.Paper, p.state, p.applied, p.refused, s)
	}
	code := ""
	if step.Problem != nil {
		code = step.Problem.Code
	}
	want := p.state
	switch {
	case step.done():
		want = "applied"
	case code == api.CodeRefused:
		want = "refused"
	case step.settled():
		want = "" // nothing was written
	}
	if p.state != want {
		b.fault("document %s is %q, and was told %v of %v", step.Paper, p.state, step, s)
	}
	if step.Repeat || !there {
		return
	}
	b.Documents++
	if p.applied == 1 {
		b.move(s, step, &p)
	}
}

// move reckons what a document brought to the shelf; what leaves it with an order is reckoned there.
func (b *Books) move(s *Story, step *Step, p *paper) {
	switch step.Verb {
	case "receive", "adjust", "count", "back":
		if step.done() && step.Document.Quantity != p.units {
			b.fault("document %s moved %d, and was told %d: %v", step.Paper, p.units, step.Document.Quantity, s)
		}
		b.moved[step.SKU] += p.units
	case "return":
		for _, l := range step.Lines {
			b.moved[l.SKU] += l.Quantity
		}
	}
}

// reckon adds what an order has by Postgres, which its steps are compared with.
func (b *Books) reckon(s *Story, stands standing, hazy bool) {
	for sku := range stands.lines {
		b.taken[sku] += stands.taken(sku)
	}
	if b.Limited == "" || s.Buyer == "" {
		return
	}
	b.have[s.Buyer] += stands.taken(b.Limited)
	b.blurred[s.Buyer] = b.blurred[s.Buyer] || hazy
}

// strangers are orders and documents of which nobody was told.
func (b *Books) strangers() {
	orders, papers := maps.Clone(b.orders), maps.Clone(b.papers)
	for _, s := range b.stories {
		delete(orders, s.Order)
		for _, step := range s.Steps {
			delete(papers, step.Paper)
		}
	}
	for order, at := range orders {
		b.fault("order %s stands in Postgres as %v, and nobody was told so", order, at)
	}
	for id, p := range papers {
		b.fault("document %s is %s in Postgres, and nobody was told so", id, p.state)
	}
}

// shelves wants every SKU of the mix to have, in both stores, exactly what nobody has.
func (b *Books) shelves() {
	s := b.Shop
	s.T.Helper()
	for _, sku := range b.all() {
		want := b.stock[sku] + b.moved[sku] - b.taken[sku]
		redis, postgres := s.InRedis(sku), s.InPostgres(sku)
		if redis != postgres || !strings.HasPrefix(postgres, fmt.Sprintf("%d|", want)) || want < 0 {
			b.fault("%s is %s in Redis and %s in Postgres; of %d units %d came in by documents and callers have %d, so %d are available",
				sku, redis, postgres, b.stock[sku], b.moved[sku], b.taken[sku], want)
		}
	}
}

// limits wants no buyer to have more than the limit, and Redis to count what each has.
func (b *Books) limits() {
	s := b.Shop
	s.T.Helper()
	if b.Limited == "" {
		return
	}
	for buyer, have := range b.have {
		if have > mixLimit {
			b.fault("%s has %d of %s, and the limit is %d", buyer, have, b.Limited, mixLimit)
		}
	}
	if err := s.Counted(b.Limited, b.have); err != nil {
		b.fault("%v", err)
	}
}
