package pipeline

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"sync"
)

const (
	tailLines = 8       // of a log that are shown when its process failed
	mostLine  = 1 << 16 // bytes of a line that are looked at
)

// place is where a role listens, as its first log line says.
type place struct {
	API string `json:"api"` // producers only
	Ops string `json:"ops"`
}

// A journal takes the log of one process: it copies it, finds the addresses in it, and remembers its end.
type journal struct {
	copy   io.Writer
	placed chan place // gets the place once

	mu    sync.Mutex
	line  []byte   // begun and not ended
	last  []string // lines, the oldest first
	found bool
}

func newJournal(copy io.Writer) *journal { return &journal{copy: copy, placed: make(chan place, 1)} }

func (j *journal) Write(text []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for rest := text; len(rest) > 0; {
		end := bytes.IndexByte(rest, '\n')
		if end < 0 {
			j.line = append(j.line, rest[:min(len(rest), max(0, mostLine-len(j.line)))]...)
			break
		}
		j.line = append(j.line, rest[:min(end, max(0, mostLine-len(j.line)))]...)
		j.take(string(j.line))
		j.line = j.line[:0]
		rest = rest[end+1:]
	}
	return j.copy.Write(text)
}

func (j *journal) take(line string) {
	if j.last = append(j.last, line); len(j.last) > tailLines {
		j.last = j.last[1:]
	}
	if j.found || !strings.HasPrefix(line, "{") {
		return
	}
	var p place
	if json.Unmarshal([]byte(line), &p) == nil && strings.HasPrefix(p.Ops, "http://") {
		j.found = true
		j.placed <- p
	}
}

// tail is the end of the log, for an error.
func (j *journal) tail() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	lines := j.last
	if len(j.line) > 0 {
		lines = append(lines[:len(lines):len(lines)], string(j.line))
	}
	if len(lines) == 0 {
		return "it said nothing"
	}
	return "its last words:\n  " + strings.Join(lines, "\n  ")
}
