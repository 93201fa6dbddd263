package sandbox

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// doorPath is the folder that a child was handed opened; empty where a folder
// cannot be handed over.
const doorPath = "/proc/self/fd/3"

func setDeathSignal(attributes *syscall.SysProcAttr, signal syscall.Signal) {
	attributes.Pdeathsig = signal
}

// guardOrphan has nothing to do here: the kernel sends the death signal.
func guardOrphan(int, syscall.Signal) (release func(), err error) { return func() {}, nil }

// descendants are the processes that pid started, and those that they started.
func descendants(pid int) []int {
	children := map[int][]int{}
	for _, other := range processes() {
		if parent := parentOf(other); parent > 0 {
			children[parent] = append(children[parent], other)
		}
	}
	family := children[pid]
	for i := 0; i < len(family); i++ {
		family = append(family, children[family[i]]...)
	}
	return family
}

// serversIn are the servers whose working folder is dir or below. Both Redis
// and Postgres, with each backend, work in their data folder; a shell of the
// user's that stands there is not a server and is let be.
func serversIn(dir string) []int {
	var found []int
	for _, pid := range processes() {
		cwd, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "cwd"))
		if err != nil || !below(strings.TrimSuffix(cwd, " (deleted)"), dir) {
			continue
		}
		name, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "comm"))
		if serverNames[strings.TrimSpace(string(name))] {
			found = append(found, pid)
		}
	}
	return found
}

func processes() []int {
	var pids []int
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// parentOf reads the fourth field of the stat line; the second is the name in
// brackets and may hold anything, so the reading starts after the last bracket.
func parentOf(pid int) int {
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(line[strings.LastIndexByte(string(line), ')')+1:]))
	if len(fields) < 2 {
		return 0
	}
	parent, _ := strconv.Atoi(fields[1])
	return parent
}

// removeSharedMemory frees the small System V segment that a killed Postgres
// leaves behind; a machine has only a few thousand of them. The server names it
// in the seventh line of postmaster.pid.
func removeSharedMemory(dir string) {
	files, _ := filepath.Glob(filepath.Join(dir, "*", "postmaster.pid"))
	for _, file := range append(files, filepath.Join(dir, "postmaster.pid")) {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		lines := strings.Split(string(text), "\n")
		if len(lines) < 7 {
			continue
		}
		fields := strings.Fields(lines[6])
		if len(fields) != 2 {
			continue
		}
		if id, err := strconv.Atoi(fields[1]); err == nil {
			_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
		}
	}
}
