package progress

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestOffTheTerminalLinesComeOncePerSecondAndOnlyWhenTheyChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := &Panel{out: &out}
		play(p, 4500*time.Millisecond, func(elapsed time.Duration) string { return fmt.Sprintf("orders %d", int(elapsed.Seconds())/2) })
		if got, want := out.String(), "orders 0\norders 1\norders 2\n"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestOnATerminalTheLineIsDrawnAgainWithinTheWidth(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := &Panel{out: &out, width: func() int { return 12 }}
		play(p, 250*time.Millisecond, func(time.Duration) string { return "orders 12, accepted 9" })
		want := strings.Repeat("\rorders 12,…\x1b[K", 2) + "\r\x1b[Korders 12, accepted 9\n"
		if got := out.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestALineThatStaysStandsAboveTheLiveOne(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := &Panel{out: &out, width: func() int { return 80 }}
	p.show("live")
	p.Say("consumer-%d ended", 2)
	p.show("live")
	if got, want := out.String(), "\rlive\x1b[K\r\x1b[Kconsumer-2 ended\n\rlive\x1b[K"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestAFileIsNoTerminal(t *testing.T) {
	t.Parallel()
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if New(file).width != nil {
		t.Error("a file was taken for a terminal")
	}
}

// play runs a panel for a time.
func play(p *Panel, d time.Duration, line func(elapsed time.Duration) string) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	var wait sync.WaitGroup
	wait.Go(func() { p.Run(ctx, func() string { return line(time.Since(began)) }) })
	wait.Wait()
}
