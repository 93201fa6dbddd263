package service

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestTheWholeProgramIsInMemory(t *testing.T) {
	if !populates(t) {
		t.Skip("SKIPPED: a kernel before 5.14 does not read memory in ahead")
	}
	if len(program()) == 0 {
		t.Fatal("no mapping of this program was found")
	}
	pageIn()
	for _, m := range program() {
		if size, resident := inSmaps(t, m); resident != size || size == 0 {
			t.Errorf("%x-%x: %d of %d kB are in memory", m.from, m.to, resident, size)
		}
	}
}

// populates tells whether the kernel is one that knows the advice, 5.14 or later.
func populates(t *testing.T) bool {
	t.Helper()
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	var major, minor int
	_, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor)
	return err == nil && (major > 5 || major == 5 && minor >= 14)
}

// inSmaps is how large a mapping is and how much of it is resident, in kB.
func inSmaps(t *testing.T, m mapping) (size, resident int) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), fmt.Sprintf("%08x-%08x ", m.from, m.to))
	for line := range strings.Lines(rest) {
		if n, _ := fmt.Sscanf(line, "Size: %d kB", &size); n == 1 {
			continue
		}
		if n, _ := fmt.Sscanf(line, "Rss: %d kB", &resident); n == 1 {
			return size, resident
		}
	}
	return 0, 0
}

func TestOnlyTheProgramIsReadIn(t *testing.T) {
	const path = "/opt/a b/consumer"
	for _, c := range []struct {
		line string
		want mapping
	}{
		{"00400000-00ffd000 r-xp 00000000 fe:00 77       /opt/a b/consumer\n", mapping{0x400000, 0xffd000}},
		{"00ffd000-01c8d000 r--p 00bfd000 fe:00 77       /opt/a b/consumer\n", mapping{0xffd000, 0x1c8d000}},
		{"01c8d000-01d25000 rw-p 0188d000 fe:00 77       /opt/a b/consumer\n", mapping{}},
		{"7f00400000-7f00401000 r-xp 00000000 fe:00 78   /lib/libc.so.6\n", mapping{}},
		{"7f00400000-7f00401000 rw-p 00000000 00:00 0\n", mapping{}},
		{"zz-01 r-xp 00000000 fe:00 77 /opt/a b/consumer", mapping{}},
		{"02-01 r-xp 00000000 fe:00 77 /opt/a b/consumer", mapping{}},
		{"", mapping{}},
	} {
		if got, ok := parseMapping(c.line, path); got != c.want || ok != (c.want != mapping{}) {
			t.Errorf("%q: got %+v %v, want %+v", c.line, got, ok, c.want)
		}
	}
}
