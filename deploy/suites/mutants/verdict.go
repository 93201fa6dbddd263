package main

import (
	"fmt"
	"strings"
	"time"
)

// A verdict is what became of a mutant: killed by a test, or nothing noticed it, or it could not be judged.
type verdict struct {
	by   string // package and test that noticed; empty: it survived
	err  error
	took time.Duration
}

// line is the one line of a mutant. What went wrong with one that could not be judged follows on lines of its own.
func (v verdict) line(m mutant) string {
	switch {
	case v.err != nil:
		return fmt.Sprintf("NOT JUDGED  (%s)  %s: %s", rounded(v.took), m.title(), strings.TrimSpace(v.err.Error()))
	case v.by == "":
		return fmt.Sprintf("SURVIVED  (%s)  %s: %s", rounded(v.took), m.title(), m.harm)
	}
	return fmt.Sprintf("killed by %s  (%s)  %s", v.by, rounded(v.took), m.title())
}

type summary struct{ killed, survived, unjudged int }

func (s *summary) count(v verdict) {
	switch {
	case v.err != nil:
		s.unjudged++
	case v.by == "":
		s.survived++
	default:
		s.killed++
	}
}

func (s summary) judged() int { return s.killed + s.survived + s.unjudged }

func (s summary) String() string {
	return fmt.Sprintf("%d mutants: %d killed, %d survived, %d not judged", s.judged(), s.killed, s.survived, s.unjudged)
}

// err wants every mutant dead.
func (s summary) err() error {
	if s.survived > 0 || s.unjudged > 0 {
		return fmt.Errorf("%d survived, %d could not be judged: write the test that is missing, or bring the table up to date", s.survived, s.unjudged)
	}
	return nil
}
