// Package progress shows how far something is: one line that is drawn again and again on a terminal, plain lines
// about once a second anywhere else. It knows nothing of what is shown.
package progress

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

const (
	redraw   = 100 * time.Millisecond // on a terminal
	plain    = time.Second            // elsewhere
	fallback = 80                     // columns of a terminal that does not tell
)

// A Panel writes lines that stay and, on a terminal, one live line below them. It is safe for concurrent use.
type Panel struct {
	out   io.Writer
	width func() int // columns of the terminal; nil when the output is none

	mu    sync.Mutex
	drawn bool   // the live line is on the screen
	last  string // what was shown last
}

// New is a panel on a file, usually os.Stdout.
func New(out *os.File) *Panel {
	if !term.IsTerminal(int(out.Fd())) || os.Getenv("TERM") == "dumb" {
		return &Panel{out: out}
	}
	return &Panel{out: out, width: func() int {
		width, _, err := term.GetSize(int(out.Fd()))
		if err != nil || width < 1 {
			return fallback
		}
		return width
	}}
}

// Say writes a text that stays; it ends with a line break.
func (p *Panel) Say(format string, arguments ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wipe()
	fmt.Fprintf(p.out, format+"\n", arguments...)
}

// Run shows the line until ctx ends, and its last state as a line that stays. Off the terminal a line that is the
// same as before is not written again.
func (p *Panel) Run(ctx context.Context, line func() string) {
	every := plain
	if p.width != nil {
		every = redraw
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			p.finish(line())
			return
		case <-ticker.C:
			p.show(line())
		}
	}
}

func (p *Panel) show(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.width == nil {
		if text != p.last {
			fmt.Fprintln(p.out, text)
		}
		p.last = text
		return
	}
	// One write, so that the terminal never shows a half-drawn line; the last column stays free because a full
	// line would wrap.
	fmt.Fprint(p.out, "\r"+cut(text, p.width()-1)+"\x1b[K")
	p.drawn = true
}

func (p *Panel) finish(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wipe()
	if p.width != nil || text != p.last {
		fmt.Fprintln(p.out, text)
	}
	p.last = ""
}

// wipe takes the live line off the screen.
func (p *Panel) wipe() {
	if p.drawn {
		fmt.Fprint(p.out, "\r\x1b[K")
		p.drawn = false
	}
}

// cut shortens a text to a number of columns; each character counts as one.
func cut(text string, columns int) string {
	if columns < 1 {
		return ""
	}
	if utf8.RuneCountInString(text) <= columns {
		return text
	}
	runes := []rune(text)
	return strings.TrimRight(string(runes[:columns-1]), " ") + "…"
}
