package takeover

import (
	"testing"
	"time"
)

// healthy is a shard at epoch 7 with 12 entries, of which the ledger has 10.
func healthy() (Status, Shard) {
	return Status{
			Loaded: true, Token: "ours.7", Ledger: "ours", Epoch: 7, Seq: 12, Mode: ModeOpen, Fence: FenceSame, Version: "1", Last: "7-12",
		}, Shard{
			Writer: "redis", Epoch: 7, Applied: 10, Claim: 7, State: StateOpen, Library: 1,
			Changed: time.Unix(1000, 0), Now: time.Unix(1001, 0),
		}
}

func TestDiagnoseNamesTheFirstClassThatFits(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name   string
		change func(*Status, *Shard)
		want   Class
	}{
		{"nothing", func(*Status, *Shard) {}, Healthy},
		{"a claim alone changes nothing", func(_ *Status, r *Shard) { r.Claim = 9 }, Healthy},
		{"decided in Postgres", func(s *Status, r *Shard) { *s, r.Writer = Status{}, "postgres" }, Healthy},
		{"another ledger", func(s *Status, _ *Shard) { s.Token, s.Ledger = "theirs.7", "theirs" }, Foreign},
		{"another ledger and halted", func(s *Status, r *Shard) { s.Token, s.Ledger, r.State = "theirs.7", "theirs", StateHalted }, Foreign},
		{"a token that is none", func(s *Status, _ *Shard) { s.Token, s.Ledger, s.Epoch = "x", "", 0 }, Foreign},
		{"halted and selling", func(_ *Status, r *Shard) { r.State = StateHalted }, Unfenced},
		{"halted and closed", func(s *Status, r *Shard) { r.State, s.Mode = StateHalted, ModeClosed }, Halted},
		{"halted and empty", func(s *Status, r *Shard) { *s, r.State = Status{}, StateHalted }, Halted},
		{"halted and restarted", func(s *Status, r *Shard) { r.State, s.Fence = StateHalted, FenceAbsent }, Halted},
		{"flushed", func(s *Status, _ *Shard) { *s = Status{Loaded: true, Fence: FenceAbsent} }, Missing},
		{"never opened", func(s *Status, r *Shard) { *s, *r = Status{}, Shard{Writer: "redis", State: StateNew} }, Missing},
		{"log gone", func(s *Status, _ *Shard) { s.Last = "" }, Missing},
		{"ledger lost an epoch", func(s *Status, _ *Shard) { s.Token, s.Epoch = "ours.8", 8 }, Ahead},
		{"attempt stopped behind its fence", func(s *Status, r *Shard) { s.Epoch, s.Mode, r.Claim = 9, ModeClosed, 9 }, Ahead},
		{"used before the ledger was new", func(_ *Status, r *Shard) { *r = Shard{Writer: "redis", State: StateNew} }, Ahead},
		{"older epoch", func(s *Status, _ *Shard) { s.Epoch = 6 }, Rewound},
		{"older epoch, restarted", func(s *Status, _ *Shard) { s.Epoch, s.Fence = 6, FenceAbsent }, Rewound},
		{"behind the ledger", func(s *Status, _ *Shard) { s.Seq = 9 }, Rewound},
		{"behind the ledger, restarted", func(s *Status, _ *Shard) { s.Seq, s.Fence = 9, FenceAbsent }, Rewound},
		{"level with the ledger", func(s *Status, _ *Shard) { s.Seq = 10 }, Healthy},
		{"restarted", func(s *Status, _ *Shard) { s.Fence = FenceAbsent }, Unopened},
		{"library lost", func(s *Status, _ *Shard) { s.Loaded, s.Fence = false, FenceAbsent }, Unopened},
		{"rewritten", func(s *Status, _ *Shard) { s.Fence = FenceDiffers }, Torn},
		{"version edited", func(s *Status, _ *Shard) { s.Version = "2" }, Torn},
		{"version deleted", func(s *Status, _ *Shard) { s.Version = "" }, Torn},
		{"mode edited", func(s *Status, _ *Shard) { s.Mode = ModeClosed }, Torn},
		{"being rebuilt", func(s *Status, r *Shard) { s.Mode, s.Seq, r.State = ModeClosed, 2, StateRebuilding }, Rebuilding},
		{"being rebuilt for long", func(s *Status, r *Shard) {
			s.Mode, r.State, r.Now = ModeClosed, StateRebuilding, r.Changed.Add(StallAfter+1)
		}, Stalled},
		{"a takeover that began before the clock was set back", func(s *Status, r *Shard) {
			s.Mode, r.State, r.Now = ModeClosed, StateRebuilding, r.Changed.Add(-2*time.Hour)
		}, Stalled},
		{"opened, but the ledger does not say so", func(_ *Status, r *Shard) {
			r.State, r.Now = StateRebuilding, r.Changed.Add(StallAfter+1)
		}, Stalled},
	}
	for _, c := range cases {
		s, r := healthy()
		c.change(&s, &r)
		if got := Diagnose("ours", s, r); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestOnlyWhatATakeoverHealsNeedsOne(t *testing.T) {
	t.Parallel()
	for class, want := range map[Class]bool{
		Healthy: false, Changing: false, Foreign: false, Unfenced: false, Halted: false, Rebuilding: false,
		Missing: true, Ahead: true, Rewound: true, Stalled: true, Unopened: true, Torn: true,
	} {
		if class.NeedsTakeover() != want {
			t.Errorf("%s: needs a takeover is %v", class, !want)
		}
	}
}

func TestTakeoversThatDoNotLastComeSlower(t *testing.T) {
	t.Parallel()
	var b Backoff
	var got []time.Duration
	for _, open := range []time.Duration{time.Hour, 9 * time.Second, 0, 0, time.Second, 0, 0, 0, 0} {
		got = append(got, b.Next(open)/time.Second)
	}
	want := []time.Duration{0, 1, 2, 4, 8, 16, 32, 60, 60}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("waits %v, want %v", got, want)
		}
	}
	if !b.Struggling() {
		t.Error("it does not say that takeovers do not last")
	}
	if b.Next(SettledAfter) != 0 || b.Struggling() || b.Next(0) != time.Second {
		t.Error("ten seconds open do not reset it")
	}
}
