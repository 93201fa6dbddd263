package stocktest

import (
	"embed"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

//go:embed testdata/*.txt
var tables embed.FS

// Bounds of a table.
const (
	maxCrowd   = 1000 // callers of one crowd
	defaultTTL = 15 * time.Minute
)

// A Script is one table: a rule, and what follows from it.
type Script struct {
	Name  string // of its file, without .txt
	Rule  string // its headline
	lines []scriptLine
}

type scriptLine struct {
	number int
	text   string
	step   Step
	crowd  int // callers at once; 0 = one alone
	want   expectation
}

// Scripts are all tables, by name. An error names the file, the line and what it should be.
func Scripts() ([]Script, error) {
	files, err := tables.ReadDir("testdata")
	if err != nil {
		return nil, fmt.Errorf("list the tables: %w", err)
	}
	var scripts []Script
	for _, f := range files {
		text, err := tables.ReadFile(path.Join("testdata", f.Name()))
		if err != nil {
			return nil, fmt.Errorf("read a table: %w", err)
		}
		s, err := ParseScript(strings.TrimSuffix(f.Name(), ".txt"), string(text))
		if err != nil {
			return nil, err
		}
		scripts = append(scripts, s)
	}
	return scripts, nil
}

// ParseScript reads a table. Its first line is "# " and the rule; further comments stand on lines of their own.
// Every other line is a step, and behind "->" what must come of it (see the package's tables). The error names
// the line.
func ParseScript(name, text string) (Script, error) {
	s := Script{Name: name}
	about := subjects{}
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		comment, isComment := strings.CutPrefix(line, "#")
		switch {
		case i == 0 && (!isComment || strings.TrimSpace(comment) == ""):
			return s, fmt.Errorf("%s:1: begin with a comment that says the rule", name)
		case i == 0:
			s.Rule = strings.TrimSpace(comment)
		case isComment || line == "":
		default:
			l, err := parseLine(line, about)
			if err != nil {
				return s, fmt.Errorf("%s:%d: %q: %w", name, i+1, line, err)
			}
			l.number = i + 1
			s.lines = append(s.lines, l)
		}
	}
	if len(s.lines) == 0 {
		return s, fmt.Errorf("%s: no step", name)
	}
	return s, nil
}

// Steps is how many lines the table has.
func (s Script) Steps() int { return len(s.lines) }

// Carts reports whether an order of the table has more than one SKU, so that a shop must keep these in one shard.
func (s Script) Carts() bool {
	return slices.ContainsFunc(s.lines, func(l scriptLine) bool {
		return len(l.step.Lines) > 1 || l.step.Verb == Replace // it may bring another SKU
	})
}

func parseLine(line string, about subjects) (scriptLine, error) {
	l := scriptLine{text: line}
	left, right, wanted := strings.Cut(line, "->")
	words := strings.Fields(left)
	if len(words) > 0 && words[0] == "crowd" {
		if len(words) < 3 {
			return l, fmt.Errorf("a crowd is `crowd <callers> <step>`")
		}
		n, err := strconv.Atoi(words[1])
		if err != nil || n < 2 || n > maxCrowd {
			return l, fmt.Errorf("a crowd has 2 to %d callers", maxCrowd)
		}
		l.crowd, words = n, words[2:]
	}
	var err error
	if l.step, err = parseStep(words); err != nil {
		return l, err
	}
	if l.crowd > 0 {
		l.want, err = parseCounts(right)
	} else {
		l.want, err = parseExpectation(l.step.Verb, about.of(&l.step), strings.TrimSpace(right), wanted)
	}
	return l, err
}

// subjects remembers which SKU an order or document is about, and which was named last (under ""), so that
// "release A -> released 2, available 6" needs no SKU. An order of several SKUs has no subject.
type subjects map[string]string

func (about subjects) of(s *Step) string {
	id, begins := s.ID, true
	switch s.Verb {
	case Fulfil, Cancel, Return:
		if s.Order != "" {
			id, begins = s.Order, false
		}
	case Confirm, Release, Late:
		begins = false // they name some of the order's lines
	}
	if len(s.Lines) == 0 || !begins {
		if sku, ok := about[id]; ok {
			return sku
		}
		return about[""]
	}
	sku := s.Lines[0].SKU
	for _, l := range s.Lines {
		if l.SKU != sku {
			about[id] = ""
			return ""
		}
	}
	about[id], about[""] = sku, sku
	return sku
}

// shapes say what follows each verb: o an order, d a document, a the order of a document, b the same if there is one, l
// lines, m lines if there are any, 1 one SKU with units, s a SKU, t a time.
var shapes = map[Verb]string{
	Stock: "1", Receive: "d1", Adjust: "d1", Count: "d1", Fulfil: "dam", Cancel: "dam", Return: "dbm",
	Reserve: "ol", Sale: "ol", Confirm: "om", Release: "om", Extend: "ot", Replace: "ol", Expire: "o", Late: "om",
	Freeze: "s", Close: "s", Lift: "s", Opens: "st", Limit: "1",
	Tick: "t", Apply: "", Forget: "o", Takeover: "", Lose: "",
	Look: "s", Standing: "o",
}

func parseStep(words []string) (Step, error) {
	if len(words) == 0 {
		return Step{}, fmt.Errorf("a verb is missing")
	}
	s := Step{Verb: Verb(words[0])}
	shape, ok := shapes[s.Verb]
	if !ok {
		return s, fmt.Errorf("unknown verb %q", words[0])
	}
	words = words[1:]
	for _, part := range shape {
		var err error
		if words, err = s.read(part, words); err != nil {
			return s, err
		}
	}
	if len(words) > 0 {
		return s, fmt.Errorf("%s does not take %q", s.Verb, strings.Join(words, " "))
	}
	return s, nil
}

// read takes one part of a step off the words.
func (s *Step) read(part rune, words []string) ([]string, error) {
	switch part {
	case 'm':
		return s.readLines(words, 0, stock.MaxOrderLines)
	case 'b':
		// Lines come in pairs, so an odd word before them is an order.
		n := len(words)
		if n > 0 && words[n-1] == scrap {
			n--
		}
		if n%2 == 0 {
			return words, nil
		}
		part = 'a'
	}
	if len(words) == 0 {
		return nil, fmt.Errorf("%s needs more", s.Verb)
	}
	var err error
	switch part {
	case 'd':
		s.ID = words[0]
	case 'o':
		s.ID, s.Attempt, err = parseOrder(words[0])
	case 'a':
		s.Order, s.Attempt, err = parseOrder(words[0])
	case 's':
		s.Lines = []Line{{SKU: words[0]}}
	case 't':
		s.Span, err = parseSpan(words[0])
	case '1':
		return s.readLines(words, 1, 1)
	case 'l':
		return s.readLines(words, 1, stock.MaxOrderLines)
	}
	return words[1:], err
}

// Words that stand alone behind the lines.
const (
	partial = "partial"
	scrap   = "scrap"
)

// readLines reads pairs of SKU and units, and what a step may say beside them.
func (s *Step) readLines(words []string, least, most int) ([]string, error) {
	taking := s.Verb == Reserve || s.Verb == Sale
	if s.Verb == Reserve {
		s.TTL = defaultTTL
	}
	for len(words) > 0 {
		var err error
		switch {
		case words[0] == partial && taking:
			s.Partial, words = true, words[1:]
			continue
		case words[0] == scrap && s.Verb == Return:
			s.Scrap, words = true, words[1:]
			continue
		}
		if len(words) < 2 {
			break
		}
		switch {
		case words[0] == "ttl" && s.Verb == Reserve:
			s.TTL, err = parseSpan(words[1])
		case words[0] == "by" && taking:
			s.Buyer = words[1]
		case len(s.Lines) == most:
			return words, nil
		default:
			var units int64
			units, err = strconv.ParseInt(words[1], 10, 64)
			s.Lines = append(s.Lines, Line{SKU: words[0], Units: units})
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", words[0], err)
		}
		words = words[2:]
	}
	if len(s.Lines) < least {
		return nil, fmt.Errorf("%s needs a SKU and units", s.Verb)
	}
	return words, nil
}

func parseOrder(word string) (string, int64, error) {
	id, number, numbered := strings.Cut(word, "#")
	if !numbered {
		return id, 1, nil
	}
	attempt, err := strconv.ParseInt(number, 10, 64)
	if err != nil || attempt < 1 {
		return id, 0, fmt.Errorf("%q is no attempt, write A#2", number)
	}
	return id, attempt, nil
}

func parseSpan(word string) (time.Duration, error) {
	d, err := time.ParseDuration(word)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%q is no time, write 15m", word)
	}
	return d, nil
}
