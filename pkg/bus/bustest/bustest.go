// Package bustest is the conformance suite of package bus: what a consumer may rely on, whatever carries the log.
package bustest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/pkg/bus"
	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// patience is how long anything here may take: the longest block of a Source, and the slowness of a busy machine.
const patience = 15 * time.Second

// A Log is the carrier under test, with the hand of its writer.
type Log interface {
	// Source is a new reader under a name. Its wait in Next is at most a second.
	Source(t testing.TB, reader string) bus.Source
	// Append writes messages, which makes the log if it is absent.
	Append(t testing.TB, messages ...Message)
	// Drop removes the log with all that hangs on it.
	Drop(t testing.TB)
}

// A Message is one entry as a writer would write it, or as it should not have.
type Message struct {
	ID     string
	Fields [][2]string
}

// Entry is a good message: one reserve of one unit, at the position.
func Entry(epoch, seq int64) Message {
	raw := event.Entry{
		Position: stock.Position{Epoch: epoch, Seq: seq}, AtMillis: 1_700_000_000_000,
		Ops: []stock.Operation{{
			Kind: stock.Release, ID: stock.Position{Epoch: epoch, Seq: seq}.String(), Attempt: 1,
		}},
		After: []event.After{{SKU: 1, Quantities: stock.Quantities{Available: seq}}},
	}.Raw()
	return Message{raw.ID, [][2]string{{"v", raw.Version}, {"t", raw.At}, {"o", raw.Ops}, {"a", raw.After}}}
}

// Run checks a carrier; open makes one that no other test sees.
func Run(t *testing.T, open func(t testing.TB) Log) {
	for _, fact := range []struct {
		name  string
		check func(*testing.T, Log)
	}{
		{"FromBringsWhatFollowsAPositionInOrder", fromFollows},
		{"NextBringsWhatArrivesOnce", nextFollows},
		{"NothingToReadIsNotAnError", nothing},
		{"AnAbsentLogIsMissingAndStaysAbsent", missing},
		{"ALogThatVanishesUnderAReaderIsFoundAgain", vanishes},
		{"AForeignEntryIsBroughtAndCannotBeParsed", foreign},
		{"WhatADeadReaderHadIsReadFromTheLedgersPosition", deadReader},
		{"TwoReadersLoseNothing", twoReaders},
		{"TheNextEpochFollows", nextEpoch},
		{"APositionMayBeSaidAgain", again},
		{"ACancelEndsTheWait", cancelled},
	} {
		t.Run(fact.name, func(t *testing.T) {
			t.Parallel()
			fact.check(t, open(t))
		})
	}
}

func at(epoch, seq int64) stock.Position { return stock.Position{Epoch: epoch, Seq: seq} }

// catchUp reads with From until it brings nothing, as a consumer does.
func catchUp(t testing.TB, s bus.Source, after stock.Position) (ids []string) {
	t.Helper()
	for {
		found, err := s.From(t.Context(), after)
		if err != nil {
			t.Fatalf("From(%v): %v", after, err)
		}
		if len(found) == 0 {
			return ids
		}
		for _, raw := range found {
			ids = append(ids, raw.ID)
		}
		if after, err = stock.ParsePosition(found[len(found)-1].ID); err != nil {
			t.Fatal(err)
		}
	}
}

// follow calls Next until so many entries came, as a consumer does whose ledger stands at applied and then keeps up.
func follow(t testing.TB, s bus.Source, applied stock.Position, count int) (ids []string) {
	t.Helper()
	for deadline := time.Now().Add(patience); len(ids) < count; {
		found, err := s.Next(t.Context(), applied)
		if err != nil {
			t.Fatalf("Next: %v", err)
		}
		for _, raw := range found {
			ids = append(ids, raw.ID)
			if applied, err = stock.ParsePosition(raw.ID); err != nil {
				t.Fatal(err)
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("Next brought %v in %v, want %d entries", ids, patience, count)
		}
	}
	return ids
}

func want(t testing.TB, got []string, ids ...string) {
	t.Helper()
	if diff := cmp.Diff(ids, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func fromFollows(t *testing.T, log Log) {
	log.Append(t, Entry(5, 1), Entry(5, 2), Entry(5, 3))
	s := log.Source(t, "a")
	want(t, catchUp(t, s, at(5, 0)), "5-1", "5-2", "5-3")
	want(t, catchUp(t, s, at(5, 2)), "5-3")
	want(t, catchUp(t, s, at(5, 3)))
	found, err := s.From(t.Context(), at(5, 2))
	if err != nil || len(found) != 1 {
		t.Fatalf("From: %v, %v", found, err)
	}
	if entry, err := found[0].Parse(); err != nil || entry.Position != at(5, 3) || entry.After[0].Available != 3 {
		t.Errorf("Parse: %+v, %v", entry, err)
	}
}

func nextFollows(t *testing.T, log Log) {
	log.Append(t, Entry(5, 1), Entry(5, 2))
	s := log.Source(t, "a")
	want(t, catchUp(t, s, at(5, 0)), "5-1", "5-2")
	log.Append(t, Entry(5, 3), Entry(5, 4))
	want(t, follow(t, s, at(5, 2), 2), "5-3", "5-4")
	log.Append(t, Entry(5, 5))
	want(t, follow(t, s, at(5, 4), 1), "5-5")
}

func nothing(t *testing.T, log Log) {
	log.Append(t, Entry(5, 1))
	s := log.Source(t, "a")
	catchUp(t, s, at(5, 0))
	for range 3 {
		began := time.Now()
		if found, err := s.Next(t.Context(), at(5, 1)); err != nil || len(found) != 0 {
			t.Fatalf("Next: %v, %v", found, err)
		}
		if took := time.Since(began); took > patience {
			t.Errorf("Next took %v", took)
		}
	}
}

func missing(t *testing.T, log Log) {
	s := log.Source(t, "a")
	for range 2 {
		if found, err := s.From(t.Context(), at(0, 0)); err != nil || len(found) != 0 {
			t.Fatalf("From: %v, %v", found, err)
		}
		if found, err := s.Next(t.Context(), at(0, 0)); !errors.Is(err, bus.ErrMissing) || len(found) != 0 {
			t.Fatalf("Next: %v, %v", found, err)
		}
	}
}

func vanishes(t *testing.T, log Log) {
	log.Append(t, Entry(5, 1))
	s := log.Source(t, "a")
	catchUp(t, s, at(5, 0))
	failed := make(chan error, 1)
	go func() {
		for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
			if _, err := s.Next(t.Context(), at(5, 1)); err != nil {
				failed <- err
				return
			}
		}
		failed <- nil
	}()
	log.Drop(t)
	if err := <-failed; err == nil {
		t.Fatal("Next never noticed")
	}
	if _, err := s.Next(t.Context(), at(5, 1)); !errors.Is(err, bus.ErrMissing) {
		t.Fatalf("Next: %v", err)
	}
	log.Append(t, Entry(6, 1), Entry(6, 2))
	want(t, catchUp(t, s, at(6, 0)), "6-1", "6-2")
	log.Append(t, Entry(6, 3))
	want(t, follow(t, s, at(6, 2), 1), "6-3")
}

func foreign(t *testing.T, log Log) {
	good := Entry(5, 1).Fields
	bad := [][][2]string{
		{{"hello", "wor\x00ld"}},
		good[:3],
		append(append([][2]string{}, good...), [2]string{"x", "1"}),
		{{"v", "2"}, good[1], good[2], good[3]},
	}
	for i, fields := range bad {
		log.Append(t, Message{at(5, int64(i+1)).String(), fields})
	}
	log.Append(t, Entry(5, 5))
	found, err := log.Source(t, "a").From(t.Context(), at(5, 0))
	if err != nil || len(found) != 5 {
		t.Fatalf("From: %v, %v", found, err)
	}
	for i, raw := range found {
		entry, err := raw.Parse()
		var unreadable *event.UnreadableError
		if i < 4 && !errors.As(err, &unreadable) {
			t.Errorf("entry %d: %+v parses to %+v, %v", i+1, raw, entry, err)
		}
		if id := at(5, int64(i+1)).String(); raw.ID != id {
			t.Errorf("entry %d has id %s", i+1, raw.ID)
		}
	}
}

func deadReader(t *testing.T, log Log) {
	log.Append(t, Entry(5, 1))
	dead := log.Source(t, "dead")
	catchUp(t, dead, at(5, 0))
	log.Append(t, Entry(5, 2), Entry(5, 3))
	want(t, follow(t, dead, at(5, 1), 2), "5-2", "5-3") // and ends before its commit
	next := log.Source(t, "next")
	want(t, catchUp(t, next, at(5, 1)), "5-2", "5-3")
	log.Append(t, Entry(5, 4))
	want(t, follow(t, next, at(5, 3), 1), "5-4")
}

func twoReaders(t *testing.T, log Log) {
	log.Append(t, Entry(5, 1))
	a, b := log.Source(t, "a"), log.Source(t, "b")
	for _, s := range []bus.Source{a, b} {
		if found, err := s.Next(t.Context(), at(5, 1)); err != nil || len(found) != 0 {
			t.Fatalf("Next: %v, %v", found, err)
		}
	}
	seen := map[string]bool{}
	for seq := int64(2); seq <= 20; seq++ {
		log.Append(t, Entry(5, seq))
		for _, s := range []bus.Source{a, b} {
			found, err := s.From(t.Context(), at(5, seq-1))
			if err != nil || len(found) != 1 {
				t.Fatalf("From: %v, %v", found, err)
			}
			seen[found[0].ID] = true
		}
	}
	if len(seen) != 19 {
		t.Errorf("%d entries were read, want 19", len(seen))
	}
}

func nextEpoch(t *testing.T, log Log) {
	log.Append(t, Entry(5, 1))
	s := log.Source(t, "a")
	catchUp(t, s, at(5, 0))
	log.Append(t, Entry(9, 1), Entry(9, 2))
	want(t, follow(t, s, at(5, 1), 2), "9-1", "9-2")
	want(t, catchUp(t, s, at(9, 0)), "9-1", "9-2")
}

func again(t *testing.T, log Log) {
	log.Append(t, Entry(5, 1))
	s := log.Source(t, "a")
	catchUp(t, s, at(5, 0))
	log.Append(t, Entry(5, 2), Entry(5, 3))
	want(t, follow(t, s, at(5, 1), 2), "5-2", "5-3")
	for _, p := range []stock.Position{at(5, 2), at(5, 2), at(5, 3), at(5, 3), at(5, 1)} {
		if found, err := s.Next(t.Context(), p); err != nil || len(found) != 0 {
			t.Errorf("Next(%v): %v, %v", p, found, err)
		}
	}
	want(t, catchUp(t, s, at(5, 1)), "5-2", "5-3")
	want(t, follow(t, s, at(5, 2), 1), "5-3")
}

func cancelled(t *testing.T, log Log) {
	log.Append(t, Entry(5, 1))
	s := log.Source(t, "a")
	catchUp(t, s, at(5, 0))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			_, _ = s.Next(ctx, at(5, 1)) // it may end with an error or with nothing
		}
	}()
	cancel()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("Next goes on")
	}
}
