package orderfile

import (
	"fmt"
	"strings"
)

// A Mistake is one thing that is wrong with a file.
type Mistake struct {
	Line   int    // of the file, from 1: the one on which the field begins
	Field  string // the column, as its header names it; empty when it is about the line
	Value  string // as it stands there, quoted and shortened; empty when there is none
	Reason string // why it cannot be taken, and what would be
}

func (m Mistake) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "line %d", m.Line)
	if m.Field != "" {
		fmt.Fprintf(&b, ", %s", m.Field)
	}
	if m.Value != "" {
		fmt.Fprintf(&b, " %s", m.Value)
	}
	fmt.Fprintf(&b, ": %s", m.Reason)
	return b.String()
}

// A MalformedError says that a file cannot be replayed, with every mistake that is worth telling.
type MalformedError struct {
	Mistakes []Mistake // by line, at most MaxMistakes
	More     int       // further ones, counted only
}

func (e *MalformedError) Error() string {
	var b strings.Builder
	for i, m := range e.Mistakes {
		if i > 0 {
			b.WriteString("\n")
		}
		b.WriteString(m.String())
	}
	if e.More > 0 {
		fmt.Fprintf(&b, "\nand %d more", e.More)
	}
	return b.String()
}

func (e *MalformedError) add(m Mistake) {
	if len(e.Mistakes) == MaxMistakes {
		e.More++
		return
	}
	e.Mistakes = append(e.Mistakes, m)
}
