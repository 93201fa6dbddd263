package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
)

// DefaultCatalogSize is how many SKUs a Catalog remembers unless told otherwise, about 200 bytes each.
const DefaultCatalogSize = 100_000

// A Catalog remembers which number and shard a SKU's text has, so that an order costs the ledger nothing once
// its SKUs were seen. It remembers living SKUs only: a text that is unknown is asked for again each time, or
// a SKU would stay unknown for a while after it was created. Look-ups of one text at one time share a query.
//
// A remembered SKU may have been deleted since. Redis tells (the SKU is missing or closed): Forget it then.
// Safe for concurrent use.
type Catalog struct {
	source skuSource
	most   int

	mu     sync.Mutex
	skus   map[string]SKU
	names  map[int64]string // a number's text never changes
	flying map[string]*flight
	flown  int64 // number of the newest flight
}

// skuSource is the part of the Ledger that a Catalog needs.
type skuSource interface {
	SKUsByText(ctx context.Context, texts []string) (map[string]SKU, error)
	SKUNames(ctx context.Context, numbers []int64) (map[int64]string, error)
}

// A flight is a query under way; found and err may be read once done is closed.
type flight struct {
	number int64 // in the order in which flights began
	texts  []string
	done   chan struct{}
	found  map[string]SKU
	err    error
}

// NewCatalog makes an empty catalog of at most most SKUs; 0 means DefaultCatalogSize.
func NewCatalog(l *Ledger, most int) *Catalog { return newCatalog(l, most) }

func newCatalog(source skuSource, most int) *Catalog {
	if most <= 0 {
		most = DefaultCatalogSize
	}
	return &Catalog{
		source: source, most: most,
		skus: map[string]SKU{}, names: map[int64]string{}, flying: map[string]*flight{},
	}
}

// SKU finds one living SKU. The error is ErrUnknownSKU, wrapped, where there is none.
func (c *Catalog) SKU(ctx context.Context, text string) (SKU, error) {
	found, err := c.SKUs(ctx, []string{text})
	if err != nil {
		return SKU{}, err
	}
	sku, ok := found[text]
	if !ok {
		return SKU{}, fmt.Errorf("%w: %q", ErrUnknownSKU, text)
	}
	return sku, nil
}

// SKUs finds the living SKUs of a cart: from memory, the rest in one query. A text that is no SKU is absent
// from the answer. The errors are those of Ledger.SKUsByText.
func (c *Catalog) SKUs(ctx context.Context, texts []string) (map[string]SKU, error) {
	if err := checkLookup(len(texts)); err != nil {
		return nil, err
	}
	found := make(map[string]SKU, len(texts))
	arrival := int64(-1)
	for {
		own, others, flown := c.split(texts, found)
		if arrival < 0 {
			arrival = flown
		}
		if own != nil {
			if err := c.fly(ctx, own); err != nil {
				return nil, err
			}
			maps.Copy(found, own.found)
		}
		var err error
		if texts, err = join(ctx, others, arrival, found); len(texts) == 0 || err != nil {
			return found, err
		}
	}
}

// split takes what is remembered, joins the queries that are under way, and makes a flight of what is left.
// flown is the number of the newest flight before ours.
func (c *Catalog) split(texts []string, found map[string]SKU) (own *flight, others map[string]*flight, flown int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	flown = c.flown
	for _, text := range texts {
		if sku, ok := c.skus[text]; ok {
			found[text] = sku
			continue
		}
		switch f := c.flying[text]; {
		case f == nil:
			if own == nil {
				c.flown++
				own = &flight{number: c.flown, done: make(chan struct{}), err: errAbandoned}
			}
			own.texts = append(own.texts, text)
			c.flying[text] = own
		case f != own:
			if others == nil {
				others = map[string]*flight{}
			}
			others[text] = f
		}
	}
	return own, others, flown
}

// fly asks for the texts of a flight, remembers what was found and lets those who joined go on.
func (c *Catalog) fly(ctx context.Context, own *flight) error {
	defer c.land(own)
	own.found, own.err = c.source.SKUsByText(ctx, own.texts)
	return own.err
}

func (c *Catalog) land(own *flight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, text := range own.texts {
		if c.flying[text] != own {
			continue // forgotten meanwhile: what we read may be older than that
		}
		delete(c.flying, text)
		if sku, ok := own.found[text]; ok {
			remember(c.skus, text, sku, c.most)
			remember(c.names, sku.Number, text, c.most)
		}
	}
	close(own.done)
}

// join waits for queries of others and returns the texts to ask for again: those that a query did not know
// which began before we came (they may have been created since), and those whose query ended with its own
// caller.
func join(ctx context.Context, others map[string]*flight, arrival int64, found map[string]SKU) (again []string, err error) {
	for text, f := range others {
		select {
		case <-f.done:
		case <-ctx.Done():
			return nil, fmt.Errorf("look up SKU %q: %w", text, ctx.Err())
		}
		sku, ok := f.found[text]
		switch {
		case f.err != nil && !endedWithCaller(f.err):
			return nil, f.err
		case f.err != nil, !ok && f.number <= arrival:
			again = append(again, text)
		case ok:
			found[text] = sku
		}
	}
	return again, nil
}

// errAbandoned stands in a flight until its query has answered.
var errAbandoned = errors.New("the look-up was abandoned")

func endedWithCaller(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errAbandoned)
}

// Names finds the texts of SKU numbers: from memory, the rest in one query. A number that the ledger never
// gave is absent from the answer.
func (c *Catalog) Names(ctx context.Context, numbers []int64) (map[int64]string, error) {
	names := make(map[int64]string, len(numbers))
	var ask []int64
	c.mu.Lock()
	for _, number := range numbers {
		if text, ok := c.names[number]; ok {
			names[number] = text
		} else {
			ask = append(ask, number)
		}
	}
	c.mu.Unlock()
	if len(ask) == 0 {
		return names, nil
	}
	answer, err := c.source.SKUNames(ctx, ask)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for number, text := range answer {
		names[number] = text
		remember(c.names, number, text, c.most)
	}
	return names, nil
}

// Forget drops a text, and keeps a query that is under way from bringing it back.
func (c *Catalog) Forget(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.skus, text)
	delete(c.flying, text)
}

// remember makes room first. Which entry goes is left to chance: it costs one look-up to bring it back.
func remember[K comparable, V any](m map[K]V, key K, value V, most int) {
	if _, there := m[key]; !there && len(m) >= most {
		for k := range m {
			delete(m, k)
			break
		}
	}
	m[key] = value
}

var _ skuSource = (*Ledger)(nil)
