package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

// shelf is a source of SKUs that counts its queries and can hold them.
type shelf struct {
	mu      sync.Mutex
	skus    map[string]SKU
	queries [][]string
	held    chan struct{} // when not nil, queries wait for it after they have read
	err     error
}

func (s *shelf) SKUsByText(ctx context.Context, texts []string) (map[string]SKU, error) {
	s.mu.Lock()
	found := map[string]SKU{}
	for _, text := range texts {
		if sku, ok := s.skus[text]; ok {
			found[text] = sku
		}
	}
	s.queries = append(s.queries, slices.Sorted(slices.Values(texts)))
	held, err := s.held, s.err
	s.mu.Unlock()
	if held != nil {
		select {
		case <-held:
		case <-ctx.Done():
			return nil, fmt.Errorf("query: %w", ctx.Err())
		}
	}
	return found, err
}

func (s *shelf) SKUNames(_ context.Context, numbers []int64) (map[int64]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queries = append(s.queries, []string{fmt.Sprint(numbers)})
	names := map[int64]string{}
	for _, sku := range s.skus {
		if slices.Contains(numbers, sku.Number) {
			names[sku.Number] = sku.Text
		}
	}
	return names, nil
}

func (s *shelf) put(text string, number int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.skus[text] = SKU{Number: number, Text: text}
}

func (s *shelf) hold(held chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = held
}

func (s *shelf) asked() [][]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.queries)
}

func newShelf(texts ...string) *shelf {
	s := &shelf{skus: map[string]SKU{}}
	for i, text := range texts {
		s.put(text, int64(i+1))
	}
	return s
}

func TestACartIsOneQueryAndThenNone(t *testing.T) {
	t.Parallel()
	s := newShelf("a", "b", "c")
	c := newCatalog(s, 10)
	for range 3 {
		found, err := c.SKUs(context.Background(), []string{"b", "a", "b"})
		if err != nil || len(found) != 2 || found["b"].Number != 2 {
			t.Fatalf("found %v, %v", found, err)
		}
	}
	names, err := c.Names(context.Background(), []int64{1, 2})
	if err != nil || names[1] != "a" || names[2] != "b" {
		t.Errorf("names %v, %v", names, err)
	}
	if got := s.asked(); len(got) != 1 || !slices.Equal(got[0], []string{"a", "b"}) {
		t.Errorf("queries %v, want one for a and b", got)
	}
}

func TestUnknownSKUIsAskedForEachTime(t *testing.T) {
	t.Parallel()
	s := newShelf()
	c := newCatalog(s, 10)
	if _, err := c.SKU(context.Background(), "tea"); !errors.Is(err, ErrUnknownSKU) {
		t.Fatalf("got %v", err)
	}
	s.put("tea", 7)
	if sku, err := c.SKU(context.Background(), "tea"); err != nil || sku.Number != 7 {
		t.Errorf("right after it was created: %+v, %v", sku, err)
	}
}

func TestConcurrentLookupsOfOneTextShareAQuery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShelf("tea")
		held := make(chan struct{})
		s.hold(held)
		c := newCatalog(s, 10)
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if sku, err := c.SKU(context.Background(), "tea"); err != nil || sku.Number != 1 {
					t.Errorf("%+v, %v", sku, err)
				}
			})
		}
		synctest.Wait()
		close(held)
		wg.Wait()
		if got := s.asked(); len(got) != 1 {
			t.Errorf("%d queries, want 1", len(got))
		}
	})
}

func TestSKUCreatedDuringASharedQueryIsFound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShelf()
		held := make(chan struct{})
		s.hold(held)
		c := newCatalog(s, 10)
		var early, late error
		var wg sync.WaitGroup
		wg.Go(func() { _, early = c.SKU(context.Background(), "tea") })
		synctest.Wait()
		s.put("tea", 1) // after the first query has read
		s.hold(nil)
		wg.Go(func() { _, late = c.SKU(context.Background(), "tea") })
		synctest.Wait() // it has joined the query that will not know
		close(held)
		wg.Wait()
		if !errors.Is(early, ErrUnknownSKU) || late != nil {
			t.Errorf("asked before: %v (want unknown); asked after it was created: %v (want none)", early, late)
		}
	})
}

func TestACallerWhoGivesUpDoesNotFailTheOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShelf("tea")
		held := make(chan struct{})
		s.hold(held)
		c := newCatalog(s, 10)
		ctx, cancel := context.WithCancel(context.Background())
		var impatient, patient error
		var wg sync.WaitGroup
		wg.Go(func() { _, impatient = c.SKU(ctx, "tea") })
		synctest.Wait()
		wg.Go(func() { _, patient = c.SKU(context.Background(), "tea") })
		synctest.Wait()
		s.hold(nil)
		cancel()
		wg.Wait()
		close(held)
		if !errors.Is(impatient, context.Canceled) || patient != nil {
			t.Errorf("who gave up: %v; who waited: %v", impatient, patient)
		}
	})
}

func TestForgottenSKUIsNotBroughtBackByAnOlderQuery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShelf("tea")
		held := make(chan struct{})
		s.hold(held)
		c := newCatalog(s, 10)
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = c.SKU(context.Background(), "tea") })
		synctest.Wait()
		c.Forget("tea")
		s.put("tea", 2)
		s.hold(nil)
		close(held)
		wg.Wait()
		if sku, err := c.SKU(context.Background(), "tea"); err != nil || sku.Number != 2 {
			t.Errorf("%+v, %v: want the number that it has now", sku, err)
		}
	})
}

func TestCatalogStaysWithinItsBound(t *testing.T) {
	t.Parallel()
	s := newShelf()
	c := newCatalog(s, 8)
	for i := range 100 {
		text := fmt.Sprint(i)
		s.put(text, int64(i+1))
		if sku, err := c.SKU(context.Background(), text); err != nil || sku.Number != int64(i+1) {
			t.Fatal(sku, err)
		}
	}
	if len(c.skus) != 8 || len(c.names) != 8 || len(c.flying) != 0 {
		t.Errorf("%d SKUs, %d names, %d queries under way; want 8, 8, 0", len(c.skus), len(c.names), len(c.flying))
	}
}

func TestAFailedLookupIsAnErrorForAll(t *testing.T) {
	t.Parallel()
	s := newShelf("tea")
	s.err = errors.New("no connection")
	c := newCatalog(s, 8)
	if _, err := c.SKU(context.Background(), "tea"); !errors.Is(err, s.err) {
		t.Errorf("got %v", err)
	}
	s.err = nil
	if _, err := c.SKU(context.Background(), "tea"); err != nil {
		t.Errorf("after the failure: %v", err)
	}
}
