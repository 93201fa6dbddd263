package stocktest

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// Run plays a table and fails the test at the first line that is not so.
func Run(t testing.TB, shop Shop, script Script) {
	t.Helper()
	if err := Play(t.Context(), shop, script); err != nil {
		t.Fatalf("%s\n%v", script.Rule, err)
	}
}

// Play plays a table against an empty shop. The error names the line and what came instead.
func Play(ctx context.Context, shop Shop, script Script) error {
	for i := range script.lines {
		l := &script.lines[i]
		if err := l.play(ctx, shop); err != nil {
			return fmt.Errorf("%s:%d: %s: %w", script.Name, l.number, l.text, err)
		}
	}
	return nil
}

func (l *scriptLine) play(ctx context.Context, shop Shop) error {
	if l.crowd > 0 {
		return l.playCrowd(ctx, shop)
	}
	if l.step.Verb != Look {
		a, err := shop.Do(ctx, l.step)
		if err != nil {
			return err
		}
		if err := l.want.met(a); err != nil {
			return err
		}
	}
	return l.want.shelves(ctx, shop)
}

// playCrowd lets many callers send the step at once; a * in the id is each caller's number.
func (l *scriptLine) playCrowd(ctx context.Context, shop Shop) error {
	answers, errs := make([]Answer, l.crowd), make([]error, l.crowd)
	var group sync.WaitGroup
	for i := range l.crowd {
		s := l.step
		s.ID = strings.ReplaceAll(s.ID, "*", strconv.Itoa(i+1))
		group.Go(func() { answers[i], errs[i] = shop.Do(ctx, s) })
	}
	group.Wait()
	counts := map[Word]int{}
	for i, a := range answers {
		if errs[i] != nil {
			return fmt.Errorf("caller %d: %w", i+1, errs[i])
		}
		counts[a.Word]++
	}
	if !maps.Equal(counts, l.want.counts) {
		return fmt.Errorf("the crowd got %v", counts)
	}
	return nil
}
