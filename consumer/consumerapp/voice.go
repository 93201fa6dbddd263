package consumerapp

import (
	"sync"
	"time"

	"go.uber.org/zap"
)

// repeatAfter is the least time between two lines with the same word: with about a dozen words it keeps the log
// below a line a second however long a trouble lasts and however many shards have it.
const repeatAfter = 15 * time.Second

// A voice turns what the loops tell into log lines. The first of a kind is written at once, its repeats are counted
// and written with the next line. Safe for concurrent use.
type voice struct {
	logger *zap.Logger

	mu    sync.Mutex
	words map[string]*said
}

// said is the last line with one word.
type said struct {
	at      time.Time
	repeats int
}

func newVoice(logger *zap.Logger) *voice {
	return &voice{logger: logger, words: map[string]*said{}}
}

// tell is the Tell of apply.Config; words are a closed set, so the map stays small.
func (v *voice) tell(shard int, word string, err error) {
	fields := make([]zap.Field, 0, 4)
	if shard >= 0 {
		fields = append(fields, zap.Int("shard", shard))
	}
	if err == nil { // assignments and the like: rare by themselves, a heartbeat apart
		v.logger.Info(word, fields...)
		return
	}
	repeats, silent := v.count(word)
	if silent {
		return
	}
	if repeats > 0 {
		fields = append(fields, zap.Int("repeats", repeats))
	}
	v.logger.Error(word, append(fields, zap.Error(err))...)
}

func (v *voice) count(word string) (repeats int, silent bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	last := v.words[word]
	if last == nil {
		v.words[word] = &said{at: time.Now()}
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
