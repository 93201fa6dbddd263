package shoptest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

var upgraded struct {
	sync.Once
	folder string
	err    error
}

// NextPrograms is the folder of programs as the next version of the function library would make them: they carry it
// and the present one. It is the present text under another number, made as its own comment says to make one.
func NextPrograms(t *testing.T) string {
	t.Helper()
	upgraded.Do(func() {
		upgraded.folder = filepath.Join(sandboxtest.Stack(t).Dir(), "bin-next")
		upgraded.err = buildNext(upgraded.folder)
	})
	if upgraded.err != nil {
		t.Fatal(upgraded.err)
	}
	return upgraded.folder
}

// NextLibrary is the version that NextPrograms bring.
const NextLibrary = redisstock.LibraryVersion + 1

func buildNext(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	home, err := filepath.Abs(filepath.Join("..", "..", "..", "pkg", "redisstock"))
	if err != nil {
		return err
	}
	texts := map[string]string{}
	present, next := redisstock.LibraryVersion, NextLibrary
	if texts[filepath.Join(home, "library.go")], err = replaced(filepath.Join(home, "library.go"),
		fmt.Sprintf("const LibraryVersion = %d\n", present), fmt.Sprintf("const LibraryVersion = %d\n", next)); err != nil {
		return err
	}
	parts, err := filepath.Glob(filepath.Join(home, "library", "*.lua"))
	if err != nil {
		return err
	}
	for _, part := range parts {
		text, err := os.ReadFile(part)
		if err != nil {
			return err
		}
		texts[filepath.Join(home, "library", "previous", filepath.Base(part))] = string(text)
		texts[part] = strings.NewReplacer(fmt.Sprintf("stockpipe_%d", present), fmt.Sprintf("stockpipe_%d", next),
			fmt.Sprintf("local VERSION = '%d'", present), fmt.Sprintf("local VERSION = '%d'", next)).Replace(string(text))
	}
	return buildOverlaid(folder, texts)
}

// replaced is the text of a file with one line changed, which must stand in it once.
func replaced(path, line, by string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(text), line); n != 1 {
		return "", fmt.Errorf("%s has %q %d times, not once", path, line, n)
	}
	return strings.Replace(string(text), line, by, 1), nil
}
