// Package verdict says whether a demo kept its promises. It compares what the callers were told with what both
// stores hold, each promise for itself, and never takes one store's word for it. It reads nothing and starts
// nothing: whoever gathered the facts hands them in.
package verdict

import (
	"fmt"
	"strings"
)

// mostExamples is how many cases a broken promise names.
const mostExamples = 3

// A Promise is one line of a verdict.
type Promise struct {
	Name     string
	Kept     bool
	Figures  string   // what was counted
	Examples []string // of what broke it, at most a few
}

func (p Promise) String() string {
	mark := "✓"
	if !p.Kept {
		mark = "✗"
	}
	text := fmt.Sprintf("%s %s: %s", mark, p.Name, p.Figures)
	for _, e := range p.Examples {
		text += "\n    " + e
	}
	return text
}

// A Verdict is all promises of a demo.
type Verdict []Promise

// Kept says whether every promise was.
func (v Verdict) Kept() bool {
	for _, p := range v {
		if !p.Kept {
			return false
		}
	}
	return true
}

func (v Verdict) String() string {
	lines := make([]string, len(v))
	for i, p := range v {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// breaches counts what breaks a promise, and keeps the first cases.
type breaches struct {
	count    int
	examples []string
}

func (b *breaches) add(format string, arguments ...any) {
	b.count++
	if len(b.examples) < mostExamples {
		b.examples = append(b.examples, fmt.Sprintf(format, arguments...))
	}
}

func (b *breaches) promise(name, figures string, arguments ...any) Promise {
	p := Promise{Name: name, Kept: b.count == 0, Figures: fmt.Sprintf(figures, arguments...), Examples: b.examples}
	if more := b.count - len(b.examples); more > 0 {
		p.Examples = append(p.Examples, fmt.Sprintf("and %d more", more))
	}
	return p
}

// Count writes a number with its thousands apart.
func Count[T int | int64](n T) string {
	digits := fmt.Sprint(n)
	sign := ""
	if n < 0 {
		sign, digits = "-", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}
