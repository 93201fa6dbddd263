package bustest

import (
	"errors"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/pkg/bus"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A TrimmedLog is a carrier whose logs can be shortened.
type TrimmedLog interface {
	Log
	// Trimmer is a new hand that trims.
	Trimmer(t testing.TB) bus.Trimmer
}

// RunTrimmer checks what a consumer may rely on when it trims; open makes a log that no other test sees.
func RunTrimmer(t *testing.T, open func(t testing.TB) TrimmedLog) {
	for _, fact := range []struct {
		name  string
		check func(*testing.T, TrimmedLog)
	}{
		{"TrimmingKeepsThePositionAndAllAfterIt", trimKeeps},
		{"TrimmingAgainRemovesNothingMore", trimAgain},
		{"APositionOfAnOlderEpochTrimsNothingOfANewerOne", trimStale},
		{"APositionThatTheLogLacksTrimsNothing", trimUnplaced},
		{"AReaderWhoseEntriesWereTrimmedReadsOn", trimPending},
		{"TwoTrimmersAtOnceKeepThePosition", trimTwice},
		{"ALogIsMeasured", measured},
	} {
		t.Run(fact.name, func(t *testing.T) {
			t.Parallel()
			fact.check(t, open(t))
		})
	}
}

// fill appends the entries from..to of an epoch.
func fill(t testing.TB, log Log, epoch, from, to int64) {
	t.Helper()
	var messages []Message
	for seq := from; seq <= to; seq++ {
		messages = append(messages, Entry(epoch, seq))
	}
	log.Append(t, messages...)
}

func trim(t testing.TB, by bus.Trimmer, before stock.Position) int64 {
	t.Helper()
	removed, err := by.Trim(t.Context(), before)
	if err != nil {
		t.Fatalf("Trim(%v): %v", before, err)
	}
	return removed
}

// kept fails unless the log has each entry of an epoch from a seq to another, and returns how many it has in all.
func kept(t testing.TB, log Log, epoch, from, to int64) int {
	t.Helper()
	ids := catchUp(t, log.Source(t, "looks"), at(0, 0))
	there := map[string]bool{}
	for _, id := range ids {
		there[id] = true
	}
	for seq := from; seq <= to; seq++ {
		if !there[at(epoch, seq).String()] {
			t.Fatalf("the entry %v is gone; %d are left", at(epoch, seq), len(ids))
		}
	}
	return len(ids)
}

func trimKeeps(t *testing.T, log TrimmedLog) {
	fill(t, log, 5, 1, 1000)
	removed := trim(t, log.Trimmer(t), at(5, 700))
	left := kept(t, log, 5, 700, 1000)
	if removed < 500 || int(removed)+left != 1000 {
		t.Errorf("%d of 699 entries were removed, %d are left", removed, left)
	}
}

func trimAgain(t *testing.T, log TrimmedLog) {
	fill(t, log, 5, 1, 500)
	by := log.Trimmer(t)
	trim(t, by, at(5, 400))
	left := kept(t, log, 5, 400, 500)
	for _, before := range []stock.Position{at(5, 400), at(5, 400), at(5, 1)} { // the last was trimmed away
		if removed := trim(t, by, before); removed != 0 {
			t.Errorf("Trim(%v) removed %d more", before, removed)
		}
	}
	if now := kept(t, log, 5, 400, 500); now != left {
		t.Errorf("%d entries became %d", left, now)
	}
}

// trimStale: the process that trims may have been stopped since before a takeover.
func trimStale(t *testing.T, log TrimmedLog) {
	fill(t, log, 5, 1, 500)
	fill(t, log, 9, 1, 500)
	by := log.Trimmer(t)
	trim(t, by, at(5, 500))
	kept(t, log, 5, 500, 500)
	kept(t, log, 9, 1, 500)
	if removed := trim(t, by, at(9, 300)); removed == 0 {
		t.Error("entries of a closed epoch stay for ever")
	}
	left := kept(t, log, 9, 300, 500)
	if removed := trim(t, by, at(5, 400)); removed != 0 || kept(t, log, 9, 300, 500) != left {
		t.Errorf("a position of epoch 5 removed %d entries of epoch 9", removed)
	}
}

// trimUnplaced: the process that trims may know a ledger that this log is not of.
func trimUnplaced(t *testing.T, log TrimmedLog) {
	by := log.Trimmer(t)
	unplaced := func(before stock.Position) {
		t.Helper()
		if removed, err := by.Trim(t.Context(), before); !errors.Is(err, bus.ErrUnplaced) || removed != 0 {
			t.Errorf("Trim(%v): %d, %v", before, removed, err)
		}
	}
	unplaced(at(5, 1)) // there is no log at all
	fill(t, log, 5, 1, 500)
	fill(t, log, 9, 1, 500)
	for _, before := range []stock.Position{at(9, 501), at(12, 1), at(5, 501), at(1_000_000_000, 3), at(7, 0)} {
		unplaced(before)
	}
	kept(t, log, 5, 1, 500)
	kept(t, log, 9, 1, 500)
}

func trimPending(t *testing.T, log TrimmedLog) {
	log.Append(t, Entry(5, 1))
	dead, alive := log.Source(t, "dead"), log.Source(t, "alive")
	catchUp(t, dead, at(5, 0))
	catchUp(t, alive, at(5, 0))
	fill(t, log, 5, 2, 400)
	want(t, follow(t, dead, at(5, 1), 399)[:1], "5-2") // all of them wait for its word, which never comes
	trim(t, log.Trimmer(t), at(5, 350))
	if got := catchUp(t, alive, at(5, 350)); len(got) != 50 || got[0] != "5-351" {
		t.Fatalf("From brought %v", got)
	}
	fill(t, log, 5, 401, 402)
	want(t, follow(t, alive, at(5, 400), 2), "5-401", "5-402")
	// The one that was given up for dead comes back: nothing that was trimmed is brought to it as if it were new.
	fill(t, log, 5, 403, 403)
	want(t, catchUp(t, dead, at(5, 402)), "5-403")
	fill(t, log, 5, 404, 404)
	want(t, follow(t, dead, at(5, 403), 1), "5-404")
}

func trimTwice(t *testing.T, log TrimmedLog) {
	fill(t, log, 5, 1, 2000)
	type result struct {
		removed int64
		err     error
	}
	results := make(chan result, 2)
	for _, by := range []bus.Trimmer{log.Trimmer(t), log.Trimmer(t)} {
		go func() {
			removed, err := by.Trim(t.Context(), at(5, 1500))
			results <- result{removed, err}
		}()
	}
	var sum int64
	for range 2 {
		r := <-results
		if r.err != nil {
			t.Error(r.err)
		}
		sum += r.removed
	}
	if left := kept(t, log, 5, 1500, 2000); int(sum)+left != 2000 {
		t.Errorf("%d were removed and %d are left of 2000", sum, left)
	}
}

func measured(t *testing.T, log TrimmedLog) {
	by := log.Trimmer(t)
	size, err := by.Size(t.Context())
	if err != nil || size.Entries != 0 || size.Last != "" {
		t.Errorf("no log is measured as %+v, %v", size, err)
	}
	fill(t, log, 5, 1, 1000)
	full, err := by.Size(t.Context())
	if err != nil || full.Entries != 1000 || full.Last != "5-1000" || full.Bytes < 1000 || full.Used < full.Bytes {
		t.Errorf("1000 entries are measured as %+v, %v", full, err)
	}
	if skew := time.Since(full.Now).Abs(); skew > time.Minute {
		t.Errorf("its clock is off by %v", skew)
	}
	trim(t, by, at(5, 900))
	cut, err := by.Size(t.Context())
	if err != nil || cut.Entries >= 500 || cut.Last != "5-1000" || cut.Bytes >= full.Bytes/2 {
		t.Errorf("what is left is measured as %+v, %v; it was %+v", cut, err, full)
	}
}
