package ledger

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The channels that Listen knows. A notice is a hint: whoever listens also polls.
const (
	ChannelApplied = channelApplied // "<shard> <epoch> <applied>"
	ChannelShard   = channelShard   // "<shard>": its state or epoch changed
	ChannelDoubt   = channelDoubt   // "<shard> <what>": somebody saw it refuse
)

// A Heard is one notice. An empty Channel means that the connection was made, or made anew: notices may have
// been missed before.
type Heard struct {
	Channel string
	Payload string
}

const (
	listenLimit   = 5 * time.Second  // to connect, to subscribe, to answer a ping
	listenSilence = 30 * time.Second // after so long without a notice the connection is tested
	listenFirst   = 100 * time.Millisecond
	listenLongest = 5 * time.Second // between two tries to connect
)

// Listen calls hear for every notice on the channels, one after the other, on a connection of its own, until
// ctx ends; it returns nil then. A lost connection is made anew, with a growing pause between tries. Through a
// pooler nobody can listen: there it looks at the shards every 50 ms and says what changed. The only errors are a call
// without channels and, through a pooler, one with ChannelDoubt.
func (l *Ledger) Listen(ctx context.Context, hear func(Heard), channels ...string) error {
	if len(channels) == 0 {
		return errors.New("listen: name at least one channel")
	}
	if l.pooled {
		return l.listenByPolling(ctx, hear, channels)
	}
	pause := listenFirst
	for ctx.Err() == nil {
		connected := l.listenOnce(ctx, hear, channels)
		if connected {
			pause = listenFirst
		}
		// Full jitter: a restart of Postgres must not bring all listeners back in one moment.
		wait(ctx, time.Duration(rand.Int64N(int64(pause))))
		pause = min(2*pause, listenLongest)
	}
	return nil
}

// listenOnce lives as long as one connection, and reports whether there was one. Its errors say nothing that
// the caller can use: the next try is the remedy.
func (l *Ledger) listenOnce(ctx context.Context, hear func(Heard), channels []string) (connected bool) {
	conn, err := l.dialListener(ctx, channels)
	if err != nil {
		return false
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing)
	}()
	hear(Heard{})
	for {
		notice, err := nextNotice(ctx, conn, listenSilence)
		if err != nil {
			return true
		}
		if notice != nil {
			hear(Heard{Channel: notice.Channel, Payload: notice.Payload})
		}
	}
}

func (l *Ledger) dialListener(ctx context.Context, channels []string) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, listenLimit)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, l.pool.Config().ConnConfig.Copy())
	if err != nil {
		return nil, err
	}
	for _, channel := range channels {
		if _, err := conn.Exec(ctx, "listen "+pgx.Identifier{channel}.Sanitize()); err != nil {
			_ = conn.Close(ctx)
			return nil, err
		}
	}
	return conn, nil
}

// nextNotice waits for a notice. After a long silence it asks whether the server is still there, because a
// cut connection may look like silence for ever; nil without an error is silence.
func nextNotice(ctx context.Context, conn *pgx.Conn, longest time.Duration) (*pgconn.Notification, error) {
	silence, cancel := context.WithTimeout(ctx, longest)
	notice, err := conn.WaitForNotification(silence)
	cancel()
	if err == nil || ctx.Err() != nil || !pgconn.Timeout(err) || conn.IsClosed() {
		return notice, err
	}
	limit, cancel := context.WithTimeout(ctx, listenLimit)
	defer cancel()
	return nil, conn.Ping(limit)
}

// wait returns after d, or when ctx ends.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// doubtPayload is what goes out on ChannelDoubt; what is cut to a word of 64 bytes.
func doubtPayload(shard int, what string) string {
	const most = 64
	word := []byte("unnamed")
	if fields := strings.Fields(what); len(fields) > 0 {
		word = []byte(fields[0])
	}
	word = word[:min(len(word), most)]
	for i, b := range word {
		if b <= ' ' || b > '~' {
			word[i] = '?'
		}
	}
	return fmt.Sprintf("%d %s", shard, word)
}

// ParseDoubt reads a payload of ChannelDoubt.
func ParseDoubt(payload string) (shard int, what string, ok bool) {
	number, what, ok := strings.Cut(payload, " ")
	shard, err := strconv.Atoi(number)
	return shard, what, ok && err == nil && shard >= 0
}

// parseApplied reads a payload of ChannelApplied.
func parseApplied(payload string) (shard int, epoch, applied int64, ok bool) {
	parts := strings.Split(payload, " ")
	if len(parts) != 3 {
		return 0, 0, 0, false
	}
	var n [3]int64
	for i, part := range parts {
		v, err := strconv.ParseInt(part, 10, 64)
		if err != nil || v < 0 {
			return 0, 0, 0, false
		}
		n[i] = v
	}
	return int(n[0]), n[1], n[2], true
}
