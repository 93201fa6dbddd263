package service

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// pageIn reads the whole program into memory, so that code that runs for the first time in trouble does not wait for
// a disk that is in trouble as well, and so that the resident size of a process is at its level from the start: left
// to itself it creeps up by a tenth for as long as new paths are taken, which looks like a leak.
//
// A kernel before 5.14 refuses the advice, and a process does as well without it.
func pageIn() {
	for _, m := range program() {
		// The file is mapped for as long as the process lives.
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, m.from, m.to-m.from, unix.MADV_POPULATE_READ)
	}
}

// A mapping is a part of the address space.
type mapping struct{ from, to uintptr }

// program is where code and constants of this program are mapped.
func program() []mapping {
	path, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil
	}
	var found []mapping
	for line := range strings.Lines(string(maps)) {
		if m, ok := parseMapping(line, path); ok {
			found = append(found, m)
		}
	}
	return found
}

// parseMapping reads a line of /proc/PID/maps, as in "00400000-00ffd000 r-xp 00000000 fe:00 77 /bin/consumer"; what
// is not of the file, or may be written, is left out.
func parseMapping(line, path string) (mapping, bool) {
	fields := strings.Fields(line)
	if len(fields) < 6 || !strings.HasPrefix(fields[1], "r-") || strings.Join(fields[5:], " ") != path {
		return mapping{}, false
	}
	from, to, _ := strings.Cut(fields[0], "-")
	first, err := strconv.ParseUint(from, 16, 64)
	if err != nil {
		return mapping{}, false
	}
	end, err := strconv.ParseUint(to, 16, 64)
	if err != nil || end < first {
		return mapping{}, false
	}
	return mapping{uintptr(first), uintptr(end)}, true
}
