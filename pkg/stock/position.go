package stock

import (
	"fmt"
	"strconv"
	"strings"
)

// A Position is a place in one shard's log. Sequence numbers start at 1 in every epoch, so positions of
// different epochs must never be compared as pairs: ask the ledger (protocol J).
type Position struct {
	Epoch int64
	Seq   int64
}

func (p Position) String() string { return fmt.Sprintf("%d-%d", p.Epoch, p.Seq) }

// ParsePosition reads "<epoch>-<seq>", the form of a stream id.
func ParsePosition(text string) (Position, error) {
	e, s, ok := strings.Cut(text, "-")
	epoch, err1 := digits(e)
	seq, err2 := digits(s)
	if !ok || err1 != nil || err2 != nil {
		return Position{}, fmt.Errorf("position %q: want <epoch>-<seq>", text)
	}
	return Position{Epoch: epoch, Seq: seq}, nil
}

// A Receipt names one operation for ever: the shard, the position of its entry and its place within it. It
// is the claim ticket of a caller: with it the service answers persisted, accepted, lost or unknown.
type Receipt struct {
	Shard int
	Position
	Index int
}

func (r Receipt) String() string {
	return fmt.Sprintf("%d.%d.%d.%d", r.Shard, r.Epoch, r.Seq, r.Index)
}

// ParseReceipt reads "<shard>.<epoch>.<seq>.<index>". The error is a *FieldError for the field receipt.
func ParseReceipt(text string) (Receipt, error) {
	bad := func() error {
		return BadField("receipt", text, "send back a receipt as the service gave it: <shard>.<epoch>.<seq>.<index>")
	}
	parts := strings.SplitN(text, ".", 5)
	if len(parts) != 4 {
		return Receipt{}, bad()
	}
	var n [4]int64
	for i, p := range parts {
		v, err := digits(p)
		if err != nil {
			return Receipt{}, bad()
		}
		n[i] = v
	}
	if n[0] >= MaxShards || n[3] >= MaxCallOps {
		return Receipt{}, bad()
	}
	return Receipt{Shard: int(n[0]), Position: Position{Epoch: n[1], Seq: n[2]}, Index: int(n[3])}, nil
}

// digits reads a canonical decimal: no sign, no leading zero, up to 2^53 - 1. What it reads prints back as it
// was, so one position has one writing.
func digits(s string) (int64, error) {
	if s == "" || len(s) > 16 || s[0] == '0' && len(s) > 1 || !all(s, digitByte) {
		return 0, strconv.ErrSyntax
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n > MaxStockQuantity {
		return 0, strconv.ErrRange
	}
	return n, nil
}
