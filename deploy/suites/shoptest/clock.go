package shoptest

import (
	"context"
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

//go:embed testdata/clock.c
var clockSource string

// clockFile is the environment variable with the file of a process' clock.
const clockFile = "CLOCK_FILE"

// A Clock is the wall clock of one machine, as one process or several see it: it can be set while they run. Their
// monotonic clocks, and so their timers, are left alone, as they are where an operator or a time server sets a clock.
type Clock struct {
	t    testing.TB
	path string
}

// NewClock makes a clock that is right.
func NewClock(t testing.TB) *Clock {
	t.Helper()
	file, err := os.CreateTemp(sandboxtest.Stack(t).Dir(), "clock-*") // servers run as another user, who may read there
	if err != nil {
		t.Fatal(err)
	}
	if err := file.Chmod(0o644); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	c := &Clock{t, file.Name()}
	c.Set(0)
	return c
}

// Set moves the clock to so much ahead of the right time (negative: behind).
func (c *Clock) Set(ahead time.Duration) {
	c.t.Helper()
	file, err := os.OpenFile(c.path, os.O_WRONLY, 0) // never cut: it is mapped
	if err != nil {
		c.t.Fatal(err)
	}
	defer file.Close()
	var text [8]byte
	binary.NativeEndian.PutUint64(text[:], uint64(ahead))
	if _, err := file.WriteAt(text[:], 0); err != nil {
		c.t.Fatal(err)
	}
}

// Env makes a server that asks the system's library for the time follow this clock. Without a compiler for the few
// lines of C that this takes the test is skipped.
func (c *Clock) Env() []string {
	c.t.Helper()
	return []string{"LD_PRELOAD=" + preload(c.t), clockFile + "=" + c.path}
}

var shim struct {
	sync.Once
	path string
	err  error
}

// preload compiles the clock, once.
func preload(t testing.TB) string {
	t.Helper()
	compiler, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("NOT TESTED: no C compiler, which the clock of a server needs: deploy/local/setup.sh cc")
	}
	shim.Do(func() {
		folder := sandboxtest.Stack(t).Dir()
		source := filepath.Join(folder, "clock.c")
		if shim.err = os.WriteFile(source, []byte(clockSource), 0o644); shim.err != nil {
			return
		}
		shim.path = filepath.Join(folder, "clock.so")
		out, err := exec.CommandContext(context.Background(), compiler, "-O2", "-shared", "-fPIC", "-o", shim.path, source).CombinedOutput()
		if err != nil {
			shim.err = fmt.Errorf("compile the clock: %w\n%s", err, out)
			return
		}
		shim.err = os.Chmod(shim.path, 0o755)
	})
	if shim.err != nil {
		t.Fatal(shim.err)
	}
	return shim.path
}

// The programs are written in Go, which asks the kernel for the time without the system's library. So those with a
// clock of their own are built with one line more in the standard library's Now, which no other build has.
const (
	nowLine  = "\tsec, nsec, mono := runtimeNow()\n"
	nowMoved = nowLine + "\tsec, nsec = moved(sec, nsec)\n"
	nowClock = `package time

import (
	"sync/atomic"
	"syscall"
	"unsafe"
)

var ahead = mapped()

// mapped is the word of the file that says by how many nanoseconds the wall clock is ahead.
func mapped() *int64 {
	path, set := syscall.Getenv("` + clockFile + `")
	if !set {
		return new(int64)
	}
	file, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		panic("the clock " + path + ": " + err.Error())
	}
	page, err := syscall.Mmap(file, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic("the clock " + path + ": " + err.Error())
	}
	syscall.Close(file)
	return (*int64)(unsafe.Pointer(&page[0]))
}

func moved(sec int64, nsec int32) (int64, int32) {
	if ahead == nil { // while the package itself begins
		return sec, nsec
	}
	return sec + atomic.LoadInt64(ahead)/1e9, nsec
}
`
)

var clocked struct {
	sync.Once
	folder string
	err    error
}

// clockedPrograms is the folder of the programs that follow a Clock.
func clockedPrograms(t *testing.T) string {
	t.Helper()
	clocked.Do(func() {
		clocked.folder = filepath.Join(sandboxtest.Stack(t).Dir(), "bin-clock")
		clocked.err = buildClocked(clocked.folder)
	})
	if clocked.err != nil {
		t.Fatal(clocked.err)
	}
	return clocked.folder
}

func buildClocked(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	root, err := exec.CommandContext(context.Background(), "go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("ask where Go is: %w", err)
	}
	library := filepath.Join(strings.TrimSpace(string(root)), "src", "time")
	original, err := os.ReadFile(filepath.Join(library, "time.go"))
	if err != nil {
		return err
	}
	if n := strings.Count(string(original), "func Now() Time {\n"+nowLine); n != 1 {
		return fmt.Errorf("the standard library's Now does not begin with %q any more: teach this file the new one", nowLine)
	}
	return buildOverlaid(folder, map[string]string{
		filepath.Join(library, "time.go"):      strings.Replace(string(original), "func Now() Time {\n"+nowLine, "func Now() Time {\n"+nowMoved, 1),
		filepath.Join(library, "time_file.go"): nowClock,
	})
}

// buildOverlaid builds the programs with other texts in the place of some files.
func buildOverlaid(folder string, texts map[string]string) error {
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for path, text := range texts {
		draft := filepath.Join(folder, fmt.Sprintf("draft-%d-%s", len(overlay.Replace), filepath.Base(path)))
		if err := os.WriteFile(draft, []byte(text), 0o644); err != nil {
			return err
		}
		overlay.Replace[path] = draft
	}
	list, err := json.Marshal(overlay)
	if err != nil {
		return err
	}
	file := filepath.Join(folder, "overlay.json")
	if err := os.WriteFile(file, list, 0o644); err != nil {
		return err
	}
	command := exec.CommandContext(context.Background(), "go", "build", "-overlay", file, "-o", folder+string(filepath.Separator),
		"./producer", "./consumer", "./reconciler")
	command.Dir = filepath.Join("..", "..", "..")
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("build the programs with other texts: %w\n%s", err, out)
	}
	return nil
}

// Ahead is by how much the wall clock of a role is ahead of the right time, to the second, as its own answers say.
func (r *Role) Ahead() time.Duration {
	r.Shop.T.Helper()
	answer, err := r.Shop.HTTP.Get(r.Ops + "/livez")
	Need(r.Shop.T, err)
	defer answer.Body.Close()
	says, err := time.Parse(time.RFC1123, answer.Header.Get("Date"))
	Need(r.Shop.T, err)
	return time.Until(says).Round(time.Second)
}
