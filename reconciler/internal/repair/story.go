package repair

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/stockpipe/stockpipe/pkg/audit"
	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// storyTime bounds one story: some of its questions have no index, for nobody but a person asks them.
const storyTime = 2 * wholeTime

// A Story is all that both stores know of a text: as an order, as a document, as a SKU.
type Story struct {
	Text      string          `json:"text"`
	Orders    []OrderStory    `json:"orders"`
	Documents []DocumentStory `json:"documents"`
	SKUs      []SKUStory      `json:"skus"`
}

// Known reports whether anybody knows the text.
func (s *Story) Known() bool { return len(s.Orders)+len(s.Documents)+len(s.SKUs) > 0 }

// An OrderStory is an order in one shard.
type OrderStory struct {
	Shard    int           `json:"shard"`
	Order    string        `json:"order"`
	Redis    string        `json:"redis"` // record now, and what Postgres says of its position
	Attempts []string      `json:"attempts"`
	Limits   []string      `json:"limits"` // what its buyer has of the SKUs with a limit, in both stores
	Events   []string      `json:"events"` // the newest first, as all that follows
	Papers   []string      `json:"documents"`
	Outcomes []string      `json:"outcomes"`
	Orphans  []string      `json:"orphans"`
	Repairs  []RepairStory `json:"repairs"`
}

// A DocumentStory is a document.
type DocumentStory struct {
	Shard    int           `json:"shard"`
	Document string        `json:"document"`
	Standing string        `json:"standing"`
	Redis    string        `json:"redis"`
	Events   []string      `json:"events"`
	Repairs  []RepairStory `json:"repairs"`
}

// A SKUStory is one SKU number; a SKU that was made anew has several.
type SKUStory struct {
	Shard     int           `json:"shard"`
	SKU       int64         `json:"sku_number"`
	Name      string        `json:"sku"`
	Postgres  string        `json:"postgres"`
	Redis     string        `json:"redis"`
	Doubt     string        `json:"doubt,omitempty"`
	Limit     string        `json:"limit,omitempty"` // units per buyer, and whether they are counted
	Movements []string      `json:"movements"`       // with the running figures
	Holds     []string      `json:"holds"`
	Documents []string      `json:"documents"`
	Repairs   []RepairStory `json:"repairs"`
}

// A RepairStory is a row of the table repair in a line.
type RepairStory struct {
	Repair int64  `json:"repair"`
	Text   string `json:"text"`
}

// Explain tells what both stores know of a text, at most limit of each kind; shard -1 looks in all. It only reads.
func (w *Warden) Explain(ctx context.Context, text string, shard, limit int) (Story, error) {
	ctx, cancel := context.WithTimeout(ctx, storyTime)
	defer cancel()
	story := Story{Text: text, Orders: []OrderStory{}, Documents: []DocumentStory{}, SKUs: []SKUStory{}}
	for _, one := range w.wards {
		if shard >= 0 && one.number != shard {
			continue
		}
		if err := one.tellOrder(ctx, text, limit, &story); err != nil {
			return story, err
		}
		if err := one.tellDocument(ctx, text, limit, &story); err != nil {
			return story, err
		}
		if err := one.tellSKU(ctx, text, limit, &story); err != nil {
			return story, err
		}
	}
	return story, nil
}

func (w *ward) tellOrder(ctx context.Context, id string, limit int, story *Story) error {
	if stock.CheckOrderID("order", id) != nil {
		return nil
	}
	o := OrderStory{Shard: w.number, Order: id}
	attempts, err := w.Ledger.Attempts(ctx, w.number, id, limit)
	if err != nil {
		return err
	}
	for _, a := range attempts {
		o.Attempts = append(o.Attempts, attemptLine(&a))
	}
	if o.Limits, err = w.limitLines(ctx, attempts); err != nil {
		return err
	}
	var record bool
	if o.Redis, record, err = w.recordLine(ctx, id); err != nil {
		return err
	}
	events, err := w.Ledger.EventsOf(ctx, w.number, id, limit)
	if err != nil {
		return err
	}
	o.Events = eventLines(events)
	papers, err := w.Ledger.DocumentsOfOrder(ctx, w.number, id, limit)
	if err != nil {
		return err
	}
	for i := range papers {
		o.Papers = append(o.Papers, documentLine(&papers[i]))
	}
	outcomes, err := w.Ledger.Outcomes(ctx, id, limit)
	if err != nil {
		return err
	}
	for _, one := range outcomes {
		if one.Shard < 0 || one.Shard == w.number {
			o.Outcomes = append(o.Outcomes, fmt.Sprintf("attempt %d: %s, told %s: %s", one.Attempt, one.Code, clockText(one.Recorded), one.Detail))
		}
	}
	if o.Orphans, err = w.orphanLines(ctx, id, limit); err != nil {
		return err
	}
	if len(attempts)+len(events)+len(o.Outcomes)+len(o.Orphans) == 0 && !record {
		return nil
	}
	if o.Repairs, err = w.repairLines(ctx, []string{id}, 0, limit); err != nil {
		return err
	}
	story.Orders = append(story.Orders, o)
	return nil
}

func attemptLine(a *ledger.Attempt) string {
	r := &a.Reservation
	line := fmt.Sprintf("attempt %d: %s since %s, receipt %s (%s), lines %s", r.Attempt, r.State, clockText(a.Moved), r.Receipt, a.Standing, event.FormatLines(r.Lines))
	line += unitsText(r)
	if a.Key != r.Attempt {
		line += fmt.Sprintf(", kept as number %d", a.Key)
	}
	if r.Buyer != "" {
		line += ", buyer " + r.Buyer
	}
	if r.State == stock.Held && !a.Due.IsZero() {
		line += ", due " + clockText(a.Due)
	}
	return line
}

// unitsText says in words what the lines of an order say in figures, where that is not simply what was asked.
func unitsText(r *stock.Reservation) string {
	var asked, shipped int64
	for _, l := range r.Lines {
		asked += l.Asked
		shipped += l.Fulfilled
	}
	now := r.Lines.Units()
	if now == asked && shipped == 0 {
		return ""
	}
	verb := map[stock.State]string{stock.Held: "held", stock.Confirmed: "to be shipped"}[r.State]
	if verb == "" {
		verb = "given back last"
	}
	return fmt.Sprintf(": %d units asked, %d %s, %d shipped", asked, now, verb, shipped)
}

// limitLines tell what the buyer of an order's newest attempt has of the SKUs that have a limit.
func (w *ward) limitLines(ctx context.Context, attempts []ledger.Attempt) (lines []string, err error) {
	lines = []string{}
	if len(attempts) == 0 || attempts[len(attempts)-1].Reservation.Buyer == "" {
		return lines, nil
	}
	r := &attempts[len(attempts)-1].Reservation
	view, err := w.Ledger.View(ctx, w.number)
	if err != nil {
		return lines, err
	}
	defer func() { err = errors.Join(err, view.Close()) }()
	numbers := make([]int64, 0, len(r.Lines))
	for _, l := range r.Lines {
		numbers = append(numbers, l.SKU)
	}
	known, err := w.Ledger.Stocks(ctx, numbers[:min(len(numbers), ledger.MaxLookup)])
	if err != nil {
		return lines, err
	}
	var keys []event.BuyerKey
	var fields []string
	for _, l := range r.Lines {
		if known[l.SKU].Settings.Limit > 0 {
			key := event.BuyerKey{SKU: l.SKU, Buyer: r.Buyer}
			keys, fields = append(keys, key), append(fields, takeover.BuyerField(key), takeover.MarkField(l.SKU))
		}
	}
	if len(keys) == 0 {
		return lines, nil
	}
	bought, err := view.BoughtOf(ctx, keys)
	if err != nil {
		return lines, err
	}
	sample, failed := (boundedRedis{w.sample}).Sample(ctx, audit.Question{Buyers: fields, Page: 1})
	for _, key := range keys {
		line := fmt.Sprintf("SKU %q (number %d): buyer %s has %d of %d by Postgres", known[key.SKU].SKU.Text, key.SKU, key.Buyer, bought[key], known[key.SKU].Settings.Limit)
		count, there := sample.Buyers[takeover.BuyerField(key)]
		switch {
		case failed != nil:
			line += "; Redis does not answer: " + failed.Error()
		case sample.Buyers[takeover.MarkField(key.SKU)] != takeover.Counted:
			line += "; Redis does not count yet"
		case !there:
			line += "; 0 by Redis"
		default:
			line += fmt.Sprintf("; %s by Redis", count)
		}
		lines = append(lines, line)
	}
	return lines, nil
}

// recordLine is Redis' record now, with what Postgres says of its position.
func (w *ward) recordLine(ctx context.Context, id string) (line string, there bool, err error) {
	sample, err := (boundedRedis{w.sample}).Sample(ctx, audit.Question{Records: []string{id}, Page: 1})
	if err != nil {
		return "does not answer: " + err.Error(), false, nil
	}
	text, there := sample.Records[id]
	if !there {
		return "no record", false, nil
	}
	r, err := event.ParseRecord(w.number, id, text)
	if err != nil {
		return fmt.Sprintf("an unreadable record: %+q", text), true, nil
	}
	standing, err := w.Ledger.Standing(ctx, r.Receipt)
	if err != nil {
		return "", false, err
	}
	return fmt.Sprintf("%s, receipt %s (%s): %s", r.State, r.Receipt, standing, text), true, nil
}

func eventLines(events []ledger.Told) []string {
	lines := make([]string, 0, len(events))
	for _, e := range events {
		line := fmt.Sprintf("%s at %s: %s", e.Receipt, millisText(e.AtMillis), e.Body)
		if e.Buyer != "" {
			line += ", buyer " + e.Buyer
		}
		lines = append(lines, line)
	}
	return lines
}

func (w *ward) orphanLines(ctx context.Context, id string, limit int) ([]string, error) {
	orphans, err := w.Ledger.OrphansOf(ctx, w.number, id, limit)
	if err != nil {
		return nil, err
	}
	lines := []string{}
	for _, o := range orphans {
		bodies := orphanBodies(o, id)
		if len(bodies) > 0 {
			lines = append(lines, fmt.Sprintf("%s: %s: never stock, answered lost, recorded %s", o.Position, strings.Join(bodies, " "), clockText(o.Recorded)))
		}
	}
	return lines, nil
}

// orphanBodies are the operations of an orphan that are of the order: the search finds also ids that begin alike.
func orphanBodies(o ledger.Orphan, id string) (bodies []string) {
	text, err := rawField(o.Raw, "o")
	if err != nil {
		return nil
	}
	ops, err := event.ParseOperations(text)
	if err != nil {
		return nil
	}
	for i := range ops {
		if ops[i].ID == id {
			bodies = append(bodies, string(event.AppendBody(nil, &ops[i])))
		}
	}
	return bodies
}

func (w *ward) repairLines(ctx context.Context, texts []string, sku int64, limit int) ([]RepairStory, error) {
	repairs, err := w.Ledger.RepairsNaming(ctx, w.number, texts, sku, limit)
	if err != nil {
		return nil, err
	}
	lines := []RepairStory{}
	for _, r := range repairs {
		ended := "was left unfinished"
		if !r.Ended.IsZero() {
			ended = "ended " + clockText(r.Ended)
		}
		lines = append(lines, RepairStory{r.ID, fmt.Sprintf("%s: %s by %s, began %s, %s: %s", r.Class, r.Verb, r.By, clockText(r.Began), ended, cut(string(r.After)))})
	}
	return lines, nil
}

// cut keeps a line of evidence readable; the row has it all.
func cut(text string) string {
	const most = 300
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

func (w *ward) tellDocument(ctx context.Context, id string, limit int, story *Story) error {
	d, found, err := w.Ledger.PaperOf(ctx, stock.DocumentID(id))
	if err != nil || !found || d.Shard != w.number {
		return err
	}
	t := DocumentStory{Shard: w.number, Document: id, Standing: documentLine(&d)}
	if t.Redis, _, err = w.recordLine(ctx, stock.DocumentID(id)); err != nil {
		return err
	}
	events, err := w.Ledger.EventsOf(ctx, w.number, stock.DocumentID(id), limit)
	if err != nil {
		return err
	}
	t.Events = eventLines(events)
	if t.Repairs, err = w.repairLines(ctx, []string{id, stock.DocumentID(id)}, 0, limit); err != nil {
		return err
	}
	story.Documents = append(story.Documents, t)
	return nil
}

func documentLine(d *ledger.Document) string {
	line := fmt.Sprintf("%s %s: %s", d.Kind, d.ID, d.State)
	for _, l := range d.Lines {
		line += fmt.Sprintf(" %d=%+d", l.SKU, l.Asked)
	}
	if d.Units != nil {
		line += ", named"
		for _, l := range d.Units {
			line += fmt.Sprintf(" %d=%d", l.SKU, l.Asked)
		}
	}
	if d.Order.ID != "" {
		line += fmt.Sprintf(", of order %s, number %d", d.Order.ID, d.Order.Key)
		if stock.OfOrder(d.Kind) && d.Order.Asked == 0 {
			line += ", whose record was dropped"
		}
	}
	if d.Kind == stock.DocumentCount {
		line += ", as of " + d.AsOf.String()
	}
	line += ", written " + clockText(d.Written)
	if d.State != ledger.DocumentWritten {
		return line + fmt.Sprintf(", settled %s by %s", clockText(d.Settled), d.Receipt)
	}
	return line + ", deadline " + millisText(d.DeadlineMillis)
}

// Lines are the story as text.
func (s *Story) Lines() []string {
	if !s.Known() {
		return []string{fmt.Sprintf("nobody knows %q: it is no order, no document and no SKU", s.Text)}
	}
	var out []string
	section := func(title string, lines []string) {
		for i, line := range lines {
			if i == 0 {
				out = append(out, "  "+title)
			}
			out = append(out, "    "+line)
		}
	}
	for i := range s.Orders {
		o := &s.Orders[i]
		out = append(out, fmt.Sprintf("order %s in shard %d", o.Order, o.Shard))
		if len(o.Attempts) == 0 {
			o.Attempts = []string{"none"}
		}
		section("in Postgres", o.Attempts)
		section("in Redis", []string{o.Redis})
		section("limits", o.Limits)
		section("events", o.Events)
		section("documents", o.Papers)
		section("told", o.Outcomes)
		section("given up", o.Orphans)
		section("repairs", repairTexts(o.Repairs))
	}
	for i := range s.Documents {
		d := &s.Documents[i]
		out = append(out, fmt.Sprintf("document %s in shard %d", d.Document, d.Shard))
		section("in Postgres", []string{d.Standing})
		section("in Redis", []string{d.Redis})
		section("events", d.Events)
		section("repairs", repairTexts(d.Repairs))
	}
	for i := range s.SKUs {
		k := &s.SKUs[i]
		out = append(out, fmt.Sprintf("SKU %q (number %d) in shard %d, as available|held|committed", k.Name, k.SKU, k.Shard))
		section("in Postgres", []string{k.Postgres})
		section("in Redis", []string{k.Redis})
		if k.Doubt != "" {
			section("in doubt", []string{k.Doubt})
		}
		if k.Limit != "" {
			section("limit", []string{k.Limit})
		}
		section("movements, the newest first", k.Movements)
		section("held by", k.Holds)
		section("documents", k.Documents)
		section("repairs", repairTexts(k.Repairs))
	}
	return out
}

func repairTexts(repairs []RepairStory) []string {
	var out []string
	for _, r := range repairs {
		out = append(out, fmt.Sprintf("%d: %s", r.Repair, r.Text))
	}
	return out
}

func clockText(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

func millisText(ms int64) string { return clockText(time.UnixMilli(ms)) }

// rawField is one field of an entry as the table orphan keeps it.
func rawField(raw json.RawMessage, field string) (string, error) {
	var fields map[string]string
	err := json.Unmarshal(raw, &fields)
	return fields[field], err
}
