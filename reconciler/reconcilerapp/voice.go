package reconcilerapp

import (
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/stockpipe/stockpipe/reconciler/internal/repair"
)

// repeatAfter is the least time between two lines of the same kind: about a dozen kinds keep the log below a line a
// second, however long a trouble lasts and however many shards have it.
const repeatAfter = 15 * time.Second

// A voice turns what the warden tells into log lines. A repair that was made is always written; of troubles the
// first of a kind is written at once, its repeats are counted and written with the next line. Safe for concurrent use.
type voice struct {
	logger *zap.Logger

	mu    sync.Mutex
	words map[string]*said
}

// said is the last line of one kind.
type said struct {
	at      time.Time
	repeats int
}

func newVoice(logger *zap.Logger) *voice { return &voice{logger: logger, words: map[string]*said{}} }

// tell is the Tell of repair.Config; words and states are closed sets, so the map stays small.
func (v *voice) tell(shard int, word string, act *repair.Act, err error) {
	fields := []zap.Field{zap.Int("shard", shard)}
	if act == nil && err == nil {
		v.logger.Info(word, fields...)
		return
	}
	kind := word
	always := false
	if act != nil {
		kind += " " + string(act.State)
		always = act.Repair != 0 && act.State != repair.Failed
		fields = append(fields, actFields(act)...)
	} else {
		fields = append(fields, zap.Error(err))
	}
	repeats, silent := v.count(kind)
	if silent && !always {
		return
	}
	if repeats > 0 {
		fields = append(fields, zap.Int("repeats", repeats))
	}
	switch {
	case act != nil && act.State == repair.Done:
		v.logger.Info(word, fields...)
	case act != nil && act.State == repair.Operator:
		v.logger.Error(word, fields...)
	default:
		v.logger.Warn(word, fields...)
	}
}

func actFields(a *repair.Act) []zap.Field {
	fields := []zap.Field{zap.String("class", a.Class), zap.String("verb", a.Verb), zap.String("state", string(a.State)), zap.String("text", a.Text)}
	for _, f := range []struct{ name, value string }{
		{"key", a.Key}, {"sku", a.Name}, {"order", a.Order}, {"position", a.Position}, {"redis_has", a.Redis}, {"postgres_says", a.Postgres},
		{"gives_up", a.GivesUp}, {"remedy", a.Remedy},
	} {
		if f.value != "" {
			fields = append(fields, zap.String(f.name, f.value))
		}
	}
	if a.SKU != 0 {
		fields = append(fields, zap.Int64("sku_number", a.SKU))
	}
	if a.Repair != 0 {
		fields = append(fields, zap.Int64("repair", a.Repair))
	}
	if t := a.Takeover; t != nil {
		fields = append(fields, zap.Int64("epoch", t.Epoch), zap.Int64("closed_ms", t.ClosedMillis), zap.String("continues", t.Continues),
			zap.Int("drained", t.Drained), zap.Int("put", t.Put), zap.Int("deleted", t.Deleted), zap.Int("same", t.Same), zap.Int("given_up", t.GivenUp))
	}
	return fields
}

func (v *voice) count(kind string) (repeats int, silent bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	last := v.words[kind]
	if last == nil {
		v.words[kind] = &said{at: time.Now()}
		return 0, false
	}
	if time.Since(last.at) < repeatAfter {
		last.repeats++
		return 0, true
	}
	repeats = last.repeats
	*last = said{at: time.Now()}
	return repeats, false
}
