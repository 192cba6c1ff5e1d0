package host

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ProcMemory is the memory that processes hold, in bytes.
type ProcMemory struct {
	Resident  int64 // Rss of smaps_rollup, which includes the mapped part of the program's own file
	Anonymous int64 // the part of Resident that no file backs: it can't be dropped, and is not shared

	// Proportional is Pss: a page counts in part for each process that has mapped it, be it
	// one of those asked for or not.
	Proportional int64
}

func (m *ProcMemory) add(o ProcMemory) {
	m.Resident += o.Resident
	m.Anonymous += o.Anonymous
	m.Proportional += o.Proportional
}

// TreeMemory returns the memory of the given processes and all their descendants. A page that
// several of them share counts for each, except in Proportional. Memory that the kernel holds
// for them, such as socket buffers, does not count. Processes that end meanwhile are left out;
// it is an error if none is left. It needs CAP_SYS_PTRACE over the processes' user namespace.
func TreeMemory(roots ...int) (ProcMemory, error) {
	all, err := processes()
	if err != nil {
		return ProcMemory{}, err
	}
	var tree []int
	for pid := range all {
		if slices.ContainsFunc(roots, func(root int) bool { return descends(all, pid, root) }) {
			tree = append(tree, pid)
		}
	}
	if len(tree) == 0 {
		tree = roots // they have ended
	}
	return ProcessMemory(tree...)
}

// ProcessMemory is TreeMemory for the given processes alone.
func ProcessMemory(pids ...int) (ProcMemory, error) {
	var sum ProcMemory
	counted := 0
	for _, pid := range pids {
		m, err := memoryOf(pid)
		switch {
		case errors.Is(err, os.ErrNotExist) || errors.Is(err, errNoMemory):
			continue
		case err != nil:
			return ProcMemory{}, err
		}
		sum.add(m)
		counted++
	}
	if counted == 0 {
		return ProcMemory{}, fmt.Errorf("read the memory of processes %v: all of them have ended", pids)
	}
	return sum, nil
}

// errNoMemory means that a process has no memory: it is ending, or it is a kernel thread.
var errNoMemory = errors.New("no memory")

func memoryOf(pid int) (ProcMemory, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if errors.Is(err, unix.ESRCH) {
		return ProcMemory{}, errNoMemory
	}
	if err != nil {
		return ProcMemory{}, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	return parseRollup(string(text))
}

// parseRollup reads lines such as "Rss: N kB".
func parseRollup(text string) (ProcMemory, error) {
	if text == "" {
		return ProcMemory{}, errNoMemory
	}
	var m ProcMemory
	for key, bytes := range map[string]*int64{"Rss": &m.Resident, "Anonymous": &m.Anonymous, "Pss": &m.Proportional} {
		number, _, ok := strings.Cut(field(text, key), " ")
		kib, err := strconv.ParseInt(number, 10, 64)
		if !ok || err != nil {
			return ProcMemory{}, fmt.Errorf("read smaps_rollup: no line %q", key)
		}
		*bytes = kib << 10
	}
	return m, nil
}
