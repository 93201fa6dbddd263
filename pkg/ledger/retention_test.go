package ledger

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestOneRetentionRulesTheWholeLedger(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	l := open(t, 1)
	url := l.pool.Config().ConnString()
	with := func(retention time.Duration) (*Ledger, error) {
		other, err := Open(ctx, Config{URL: url, MaxConns: 2, Retention: retention})
		if err == nil {
			t.Cleanup(other.Close)
		}
		return other, err
	}
	first, err := with(time.Hour)
	check(t, err)
	check(t, first.AgreeRetention(ctx))
	check(t, first.AgreeRetention(ctx))
	same, err := with(time.Hour)
	check(t, err)
	check(t, same.AgreeRetention(ctx))
	untold, err := with(0)
	check(t, err)
	if untold.Retention() != time.Hour {
		t.Errorf("who was told nothing goes by %v", untold.Retention())
	}
	var setting *SettingError
	if _, err := with(2 * time.Hour); !errors.As(err, &setting) || setting.Setting != "--retention" {
		t.Errorf("another retention is let in: %v", err)
	}
	if _, err := l.pool.Exec(ctx, `insert into producer (id, libraries) values ('p', '{1}')`); err != nil {
		t.Fatal(err)
	}
	if err := first.ChangeRetention(ctx, 2*time.Hour); !errors.Is(err, ErrAtWork) {
		t.Errorf("changed while a producer lives: %v", err)
	}
	if _, err := l.pool.Exec(ctx, `update producer set seen = now() - interval '11 s'`); err != nil {
		t.Fatal(err)
	}
	check(t, first.ChangeRetention(ctx, 2*time.Hour))
	if _, err := with(2 * time.Hour); err != nil {
		t.Errorf("the new one is refused: %v", err)
	}
	if err := first.AgreeRetention(ctx); !errors.As(err, &setting) {
		t.Errorf("who goes by the old one does not notice: %v", err)
	}
}

// Producers and consumers take the default for granted until somebody says another.
func TestNoRetentionIsAgreedOnBehindWhoeverWorks(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	l := open(t, 1)
	exec(t, l, `update ledger set retention_ms = null`)
	exec(t, l, `insert into consumer (id) values ('c')`)
	with := func(retention time.Duration) *Ledger {
		other, err := Open(ctx, Config{URL: l.pool.Config().ConnString(), MaxConns: 2, Retention: retention})
		check(t, err)
		t.Cleanup(other.Close)
		return other
	}
	if err := with(time.Hour).AgreeRetention(ctx); !errors.Is(err, ErrAtWork) {
		t.Errorf("another than the default, behind a consumer at work: %v", err)
	}
	exec(t, l, `update consumer set seen = now() - interval '11 s'`)
	check(t, with(time.Hour).AgreeRetention(ctx))
	exec(t, l, `update ledger set retention_ms = null`)
	exec(t, l, `update consumer set seen = now()`)
	check(t, with(0).AgreeRetention(ctx))
}
