package audit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// sentinel is the field of orders and buyers that carries the nonce of the takeover.
const sentinel = "~"

// comparison is one pass: the view, the sample, the log, and what comes of them.
type comparison struct {
	ledger  Ledger
	redis   Redis
	options Options
	report  Report

	view   View
	snap   Snapshot
	sample Sample
	book   *event.Book
	bought map[event.BuyerKey]int64 // of the snapshot: the page, and what was asked for later
	loaded map[string]Order         // of the snapshot: the page, and what was asked for later
	asked  map[string]bool          // ids that the snapshot was asked for
	moved  map[string]bool          // orders that the log since p moved
	images map[int64]event.Mismatch
}

func (c *comparison) run(ctx context.Context) (err error) {
	if c.view, err = c.ledger.View(ctx, c.options.Shard, c.options.Cursor.Ledger, c.options.Page); err != nil {
		return fmt.Errorf("open a snapshot of the ledger: %w", err)
	}
	defer func() { err = errors.Join(err, c.view.Close()) }()
	c.snap = c.view.Snapshot()
	page, nextBought, err := c.view.Bought(ctx, c.options.Cursor.Bought, c.options.Page)
	if err != nil {
		return fmt.Errorf("read what buyers have from the snapshot: %w", err)
	}
	c.bought = page
	if c.sample, err = c.redis.Sample(ctx, c.question()); err != nil {
		return fmt.Errorf("read a sample of Redis: %w", err)
	}
	if fit, err := c.fit(ctx); err != nil || !fit {
		return err
	}
	c.report.Ledger = c.snap.Shard.Position()
	c.report.Redis = stock.Position{Epoch: c.sample.Status.Epoch, Seq: c.sample.Status.Seq}
	if err := c.open(ctx); err != nil {
		return err
	}
	if whole, err := c.replay(ctx); err != nil || !whole {
		return err
	}
	c.compareStock()
	c.compareOrders()
	c.compareBuyers()
	if err := c.invariants(ctx); err != nil {
		return err
	}
	c.report.Compared = true
	c.report.Cursor = Cursor{Ledger: c.snap.Next, Redis: c.sample.Next, Bought: nextBought, Counts: c.sample.BuyersNext}
	c.report.LedgerSwept, c.report.RedisSwept = c.snap.Next == "", c.sample.Next == 0
	c.report.BoughtSwept, c.report.CountsSwept = nextBought == event.BuyerKey{}, c.sample.BuyersNext == 0
	return nil
}

// question asks Redis for what the snapshot has on its pages, and for the next pages of what Redis has itself.
func (c *comparison) question() Question {
	return Question{
		Records: slices.Sorted(maps.Keys(c.snap.Orders)), Buyers: c.buyerFields(),
		Orders: c.options.Cursor.Redis, Counts: c.options.Cursor.Counts, Page: c.options.Page,
	}
}

// open makes the book at p, with the orders of both pages in it.
func (c *comparison) open(ctx context.Context) error {
	c.book = event.NewBook(c.options.Shard)
	c.book.Forgetful = true // whether an attempt could be taken again was the ledger's to decide
	for sku, field := range c.snap.Stock {
		c.book.Stock[sku] = field.Quantities
		if field.Settings != (stock.Settings{}) {
			c.book.Settings[sku] = field.Settings
		}
	}
	c.loaded, c.asked, c.moved = map[string]Order{}, map[string]bool{}, map[string]bool{}
	c.images = map[int64]event.Mismatch{}
	c.take(c.snap.Orders)
	var more []string
	for id := range c.sample.Page {
		if id != sentinel && !c.asked[id] {
			more = append(more, id)
		}
	}
	if err := c.load(ctx, more); err != nil {
		return err
	}
	return c.openBuyers(ctx)
}

func (c *comparison) take(orders map[string]Order) {
	for id, order := range orders {
		c.loaded[id], c.asked[id] = order, true
		if c.book.Orders[id] == nil {
			c.book.Orders[id] = &order.Reservation
		}
	}
}

// load reads orders from the snapshot into the book, each once.
func (c *comparison) load(ctx context.Context, ids []string) error {
	ids = slices.DeleteFunc(ids, func(id string) bool { return c.asked[id] })
	if len(ids) == 0 {
		return nil
	}
	slices.Sort(ids)
	for part := range slices.Chunk(ids, c.options.Page) {
		orders, err := c.view.Orders(ctx, part)
		if err != nil {
			return fmt.Errorf("read %d orders from the snapshot: %w", len(part), err)
		}
		for _, id := range part {
			c.asked[id] = true
		}
		c.take(orders)
	}
	return nil
}

// raise adds a drift; beyond MaxDrifts it only counts.
func (c *comparison) raise(d Drift) {
	d.Shard = c.options.Shard
	if d.Verb == "" {
		d.Verb = verbs[d.Class]
	}
	if d.Position == "" && c.report.Redis != (stock.Position{}) {
		d.Position = c.report.Redis.String()
	}
	c.report.list(d)
}

// protocolFields are the fields of the state hash that are no SKU.
var protocolFields = map[string]bool{"e": true, "q": true, "m": true, "n": true, "v": true}

// compareStock compares every SKU of both sides at q.
func (c *comparison) compareStock() {
	for _, sku := range slices.Sorted(maps.Keys(c.book.Stock)) {
		c.report.SKUs++
		text, there := c.sample.State[strconv.FormatInt(sku, 10)]
		c.compareSKU(sku, text, there)
	}
	for _, field := range slices.Sorted(maps.Keys(c.sample.State)) {
		if protocolFields[field] {
			continue
		}
		sku, err := strconv.ParseInt(field, 10, 64)
		_, known := c.book.Stock[sku]
		if err == nil && known && strconv.FormatInt(sku, 10) == field {
			continue
		}
		if err != nil {
			sku = 0
		}
		c.report.SKUs++
		c.raise(Drift{Class: Tampered, Key: "state", SKU: sku, Redis: c.sample.State[field],
			Text: fmt.Sprintf("Redis has a stock field %+q that neither the ledger nor the log knows", field)})
	}
}

func (c *comparison) compareSKU(sku int64, text string, there bool) {
	want := event.Field{Quantities: c.book.Stock[sku], Settings: c.book.Settings[sku]}
	drift := Drift{Class: Tampered, Key: "state", SKU: sku, Redis: text, Postgres: want.String()}
	doubt := c.snap.Doubt[sku]
	have, err := event.ParseField(text)
	image, disagreed := c.images[sku]
	switch {
	case !there:
		drift.Text = "the SKU is missing in Redis"
	case err != nil:
		drift.Text = "its stock cannot be read in Redis"
	case have.Quantities != want.Quantities && doubt != "":
		drift.Text = "the quantities differ; the ledger froze the SKU: " + doubt
	case disagreed:
		drift.Text = "an after-image disagrees: " + image.String()
	case have.Quantities != want.Quantities:
		drift.Text = "the quantities differ"
	case have.Settings != want.Settings && doubt == "":
		drift.Text = "the settings differ"
	default:
		return
	}
	c.raise(drift)
}

// compareOrders compares the records of both pages; all of them come from the one sample.
func (c *comparison) compareOrders() {
	have := maps.Clone(c.sample.Records)
	if have == nil {
		have = map[string]string{}
	}
	maps.Copy(have, c.sample.Page)
	ids := make([]string, 0, len(have)+len(c.snap.Orders))
	for id := range have {
		if id != sentinel {
			ids = append(ids, id)
		}
	}
	for id := range c.snap.Orders {
		if _, there := have[id]; !there {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for _, id := range ids {
		text, there := have[id]
		switch age := c.age(id); {
		case age == turning:
			c.report.Aged++
			continue
		case age == over && !there:
			c.report.Dropped++
			continue
		}
		c.report.Orders++
		if order := c.book.Orders[id]; order != nil && (order.State.Ended() || order.State == stock.Fulfilled) {
			c.report.Ended++
		}
		c.compareOrder(id, text, there)
	}
}

func (c *comparison) compareOrder(id, text string, there bool) {
	drift := Drift{Class: Tampered, Key: "orders", Order: id, Redis: text}
	want := c.book.Orders[id]
	if want != nil {
		drift.Postgres = event.FormatRecord(want)
	}
	switch {
	case want == nil && !there:
		return // moved by nobody and known to nobody: cannot happen, and would be no difference
	case want == nil:
		drift.Text = "Redis has a record that neither the ledger nor the log knows"
	case !there:
		drift.Text = "the record is missing in Redis"
	case text != drift.Postgres && !(c.age(id) == over && c.outlived(text, want)):
		drift.Text = "the records differ"
	default:
		return
	}
	c.raise(drift)
}

// An age is how an order stands to the end of its retention.
type age int

const (
	young   age = iota // its record has to be there
	turning            // its record may be dropped at any moment, or has just been
	over               // its record is dropped, or will be; what is still there answers repeats, and has to be true
)

// outlived reports whether a record beyond its retention may be of the order although documents have gone on without
// it: they leave its position, and what was asked.
func (c *comparison) outlived(text string, want *stock.Reservation) bool {
	have, err := event.ParseRecord(c.options.Shard, want.ID, text)
	if err != nil || have.State != stock.Confirmed || !slices.Contains([]stock.State{stock.Confirmed, stock.Cancelled, stock.Fulfilled}, want.State) {
		return false
	}
	same := *want
	same.State, same.Lines = have.State, have.Lines
	return event.FormatRecord(&same) == text && sameAsked(have.Lines, want.Lines)
}

// age tells how long ago an order ended or was confirmed, as the snapshot knew it. A hold is always young, and so is
// what the log since p moved.
func (c *comparison) age(id string) age {
	order, known := c.loaded[id]
	if !known || c.moved[id] || order.State == stock.Held || c.snap.Retention <= 0 {
		return young
	}
	switch since, tenth := c.snap.Shard.Now.Sub(order.Moved), c.snap.Retention/10; {
	case since < c.snap.Retention-tenth:
		return young
	case since < c.snap.Retention+tenth:
		return turning
	}
	return over
}

func (c *comparison) invariants(ctx context.Context) error {
	if c.options.SkipInvariants {
		return nil
	}
	broken, err := c.view.Invariants(ctx)
	if err != nil {
		return fmt.Errorf("check the ledger's invariants: %w", err)
	}
	for _, b := range broken {
		c.raise(Drift{Class: b.Class, Key: keyLedger, SKU: b.SKU, Order: b.Order,
			Position: c.report.Ledger.String(), Text: b.Text})
	}
	return nil
}

// late reports whether the ledger has not moved although its next entry is old.
func (c *comparison) late(ctx context.Context, next event.Entry) error {
	age := time.Duration(c.sample.Status.AtMillis-next.AtMillis) * time.Millisecond
	if c.options.StuckAfter <= 0 || age < c.options.StuckAfter {
		return nil
	}
	row, err := c.settled(ctx)
	if err != nil {
		return err
	}
	if row.Applied == c.snap.Shard.Applied && row.State != takeover.StateHalted {
		c.raise(Drift{Class: GapLog, Key: "log", Position: next.Position.String(),
			Text: fmt.Sprintf("the ledger stands at %s although the log has had the next entry for %v", row.Position(), age)})
	}
	return nil
}
