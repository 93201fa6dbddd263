package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Retention is how long ended and confirmed orders stay known to Redis.
func (l *Ledger) Retention() time.Duration { return l.retention }

// retentionError says that this process was told another retention than the ledger goes by.
func retentionError(told, agreed time.Duration) error {
	return &SettingError{Setting: "--retention", Value: told.String(),
		Remedy: fmt.Sprintf("use %v, which this ledger goes by, or change it for all: stop producers and consumers and run `stockpipe-reconciler retain --retention %v`", agreed, told)}
}

// checkRetention compares what this process was told with what the ledger goes by, if anybody said so yet.
func (l *Ledger) checkRetention(told time.Duration, agreedMillis int64) error {
	agreed := time.Duration(agreedMillis) * time.Millisecond
	switch {
	case agreed == 0:
	case told <= 0:
		l.retention = agreed
	case told != agreed:
		return retentionError(told, agreed)
	}
	return nil
}

// ErrAtWork means that producers or consumers live, which go by what they were started with.
var ErrAtWork = errors.New("producers or consumers are at work: stop them, wait 10 s, and ask again")

// AgreeRetention writes this process' retention down as the ledger's, where nobody has. Another one that stands is a
// *SettingError. One that is not what a producer or consumer at work took for granted is ErrAtWork, wrapped. Safe to repeat.
func (l *Ledger) AgreeRetention(ctx context.Context) error {
	err := l.inTx(ctx, pgx.TxOptions{}, func(tx pgx.Tx) error {
		var agreed int64
		if err := tx.QueryRow(ctx, `select coalesce(retention_ms, 0) from ledger for no key update`).Scan(&agreed); err != nil {
			return err
		}
		if agreed != 0 {
			return l.checkRetention(l.retention, agreed)
		}
		if l.retention != defaultRetention {
			if err := nobodyAtWork(ctx, tx); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, `update ledger set retention_ms = $1`, l.retention.Milliseconds())
		return err
	})
	if err != nil {
		return fmt.Errorf("agree on the retention %v: %w", l.retention, err)
	}
	return nil
}

func nobodyAtWork(ctx context.Context, tx pgx.Tx) error {
	var alive bool
	err := tx.QueryRow(ctx, `select exists (select from producer where seen > now() - interval '10 s')
		or exists (select from consumer where seen > now() - interval '10 s')`).Scan(&alive)
	if err == nil && alive {
		err = ErrAtWork
	}
	return err
}

// ChangeRetention makes another retention the ledger's. Whoever runs goes by the old one: it is refused as ErrAtWork while
// a producer or consumer was seen in the last 10 s. Reconcilers have to be started anew, too.
func (l *Ledger) ChangeRetention(ctx context.Context, to time.Duration) error {
	err := l.inTx(ctx, pgx.TxOptions{}, func(tx pgx.Tx) error {
		if err := nobodyAtWork(ctx, tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `update ledger set retention_ms = $1`, to.Milliseconds())
		return err
	})
	if err != nil {
		return fmt.Errorf("change the retention to %v: %w", to, err)
	}
	return nil
}
