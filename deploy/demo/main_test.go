package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stockpipe/stockpipe/pkg/config"
)

func TestFlagsOutsideTheirBoundsAreNamed(t *testing.T) {
	t.Parallel()
	for arguments, want := range map[string]string{
		"--shards 0":                `--shards: "0" is not acceptable: use 1 to 64`,
		"--producers 9":             `--producers: "9"`,
		"--consumers 0":             `--consumers: "0"`,
		"--buyers 0":                `--buyers: "0"`,
		"--units 1000001":           `--units: "1000001"`,
		"--skus=-1":                 `--skus: "-1"`,
		"--lasts 2h":                `--lasts: "2h0m0s"`,
		"--orders f.csv --shards 4": "leave out --shards with --orders",
	} {
		var s Settings
		_, err := config.ParseArgs("demo", description, &s, strings.Fields(arguments), io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", arguments, err, want)
		}
	}
}

func TestTheEndHasItsExitCode(t *testing.T) {
	t.Parallel()
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	for _, c := range []struct {
		name string
		ctx  context.Context
		err  error
		want int
	}{
		{"kept", context.Background(), nil, 0},
		{"broken", context.Background(), errBroken, 1},
		{"not carried out", context.Background(), errors.New("no redis-server"), 2},
		{"interrupted", cancelled, fmt.Errorf("wait: %w", context.Canceled), 130},
		{"a call that was cancelled by something else", context.Background(), context.Canceled, 2},
		{"broken, then interrupted", cancelled, errBroken, 1},
	} {
		if got := conclude(c.ctx, Settings{}, c.err); got != c.want {
			t.Errorf("%s: exit code %d, want %d", c.name, got, c.want)
		}
	}
}

func TestAnInterruptSaysHowToGoOn(t *testing.T) {
	t.Parallel()
	for want, s := range map[string]Settings{
		"Resume it with the same --orders f.csv --keep there.": {Orders: "f.csv", Keep: "there"},
		"--keep there plays another sale":                      {Keep: "there"},
		"With --keep FOLDER a replay can be resumed":           {Orders: "f.csv"},
	} {
		if got := interrupted(s); !strings.Contains(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
