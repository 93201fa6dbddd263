//go:build unix && !linux

package sandbox

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

const doorPath = ""

func setDeathSignal(*syscall.SysProcAttr, syscall.Signal) {}

// guardOrphan does what the kernel does elsewhere: the signal goes to the
// child's group, which is then woken if it was stopped.
func guardOrphan(pid int, signal syscall.Signal) (release func(), err error) {
	return onOrphaned(signal, []int{-pid})
}

func descendants(pid int) []int {
	children := map[int][]int{}
	for _, line := range ps("pid=,ppid=") {
		if len(line) != 2 {
			continue
		}
		child, err1 := strconv.Atoi(line[0])
		parent, err2 := strconv.Atoi(line[1])
		if err1 == nil && err2 == nil {
			children[parent] = append(children[parent], child)
		}
	}
	family := children[pid]
	for i := 0; i < len(family); i++ {
		family = append(family, children[family[i]]...)
	}
	return family
}

// serversIn are the servers that were started with a data folder in dir.
func serversIn(dir string) []int {
	var found []int
	for _, line := range ps("pid=,command=") {
		if len(line) < 2 || !serverNames[filepath.Base(line[1])] {
			continue
		}
		if !strings.Contains(strings.Join(line[2:], " ")+" ", dir+string(filepath.Separator)) {
			continue
		}
		if pid, err := strconv.Atoi(line[0]); err == nil {
			found = append(found, pid)
		}
	}
	return found
}

func ps(columns string) [][]string {
	out, _ := exec.Command("ps", "-axww", "-o", columns).Output()
	var lines [][]string
	for line := range strings.Lines(string(out)) {
		lines = append(lines, strings.Fields(line))
	}
	return lines
}

func removeSharedMemory(string) {}
