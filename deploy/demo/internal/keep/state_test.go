package keep

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var asked = State{Orders: strings.Repeat("a", 64), File: "orders.csv", Shards: 1}

func TestASecondRunResumesTheFirst(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	first, err := Begin(folder, asked)
	if err != nil || first.Resumed() || first.Prefix != "sp" || first.Database != "stockpipe" {
		t.Fatalf("got %+v, %v", first, err)
	}
	second, err := Begin(folder, asked)
	if err != nil || !second.Resumed() || second.Runs != 2 || second.Prefix != first.Prefix {
		t.Fatalf("got %+v, %v", second, err)
	}
	left, err := filepath.Glob(filepath.Join(folder, "*"))
	if err != nil || len(left) != 1 {
		t.Errorf("the folder holds %v, want the one file", left)
	}
}

func TestAFolderIsForOneThing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(*State)
		want   string
	}{
		{"another file", func(s *State) { s.Orders, s.File = strings.Repeat("b", 64), "other.csv" }, "other.csv is another file (bbbbbbbbbbbb…)"},
		{"a sale", func(s *State) { s.Orders, s.File = "", "" }, "keeps the replay of orders.csv: go on with --orders orders.csv"},
		{"other shards", func(s *State) { s.Shards = 4 }, "has 1 shards: go on with --shards 1"},
		{"another Redis", func(s *State) { s.Redis = "127.0.0.1:6379" }, "begun with other servers (Redis private, Postgres private)"},
	} {
		folder := t.TempDir()
		if _, err := Begin(folder, asked); err != nil {
			t.Fatal(err)
		}
		other := asked
		c.change(&other)
		if _, err := Begin(folder, other); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
		if again, err := Begin(folder, asked); err != nil || again.Runs != 2 {
			t.Errorf("%s: the refusal changed the folder: %+v, %v", c.name, again, err)
		}
	}
}

func TestAReplayDoesNotGoIntoTheFolderOfASale(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	if _, err := Begin(folder, State{Shards: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := Begin(folder, asked); err == nil || !strings.Contains(err.Error(), "keeps a sale, not a replay") {
		t.Errorf("got %v", err)
	}
}

func TestAnUnreadableFileIsNotOverwritten(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"{": "is unreadable", `{"version":99}`: "another version", strings.Repeat(" ", 1<<17): "is not ours"} {
		folder := t.TempDir()
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Begin(folder, asked); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		if now, _ := os.ReadFile(path); string(now) != text {
			t.Errorf("%q was overwritten by %q", text, now)
		}
	}
}

func TestOnServersOfTheUserTheNamesAreUnique(t *testing.T) {
	t.Parallel()
	shared := State{Shards: 1, Redis: "127.0.0.1:6379"}
	a, err := Begin(t.TempDir(), shared)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Begin(t.TempDir(), shared)
	if err != nil {
		t.Fatal(err)
	}
	if a.Prefix == b.Prefix || a.Database == b.Database || !strings.HasPrefix(a.Prefix, "demo-") {
		t.Errorf("got %+v and %+v", a, b)
	}
}
