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

// ProcMemory is what processes hold, in bytes.
type ProcMemory struct {
	Resident  int64 // Rss of smaps_rollup: the program's own file too, as far as it is mapped in
	Anonymous int64 // of that, what no file is behind: it can't be dropped, and nobody shares it
}

func (m ProcMemory) plus(o ProcMemory) ProcMemory {
	return ProcMemory{m.Resident + o.Resident, m.Anonymous + o.Anonymous}
}

// TreeMemory is the memory of the processes given and all their descendants. A
// page that several of them share counts for each, and what the kernel holds for
// them (socket buffers) does not count. A process that ends meanwhile counts as
// nothing, as long as one is left. It wants CAP_SYS_PTRACE over the processes'
// user namespace.
func TreeMemory(roots ...int) (ProcMemory, error) {
	parents, err := parentsOfAll()
	if err != nil {
		return ProcMemory{}, err
	}
	var sum ProcMemory
	counted := 0
	for pid := range parents {
		if !slices.ContainsFunc(roots, func(root int) bool { return descends(parents, pid, root) }) {
			continue
		}
		one, err := memoryOf(pid)
		switch {
		case errors.Is(err, os.ErrNotExist) || errors.Is(err, errNoMemory):
			continue
		case err != nil:
			return ProcMemory{}, err
		}
		sum = sum.plus(one)
		counted++
	}
	if counted == 0 {
		return ProcMemory{}, fmt.Errorf("read the memory of processes %v: none of them is there", roots)
	}
	return sum, nil
}

// parentsOfAll is each process's parent.
func parentsOfAll() (map[int]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	parents := map[int]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // it has ended
		}
		if parent, ok := parentOf(string(stat)); ok {
			parents[pid] = parent
		}
	}
	return parents, nil
}

// parentOf reads the parent from /proc/PID/stat. The command's name stands in
// parentheses and may hold anything.
func parentOf(stat string) (int, bool) {
	f := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:]) // state, parent, …
	if len(f) < 2 {
		return 0, false
	}
	parent, err := strconv.Atoi(f[1])
	return parent, err == nil
}

func descends(parents map[int]int, pid, root int) bool {
	for pid > 0 {
		if pid == root {
			return true
		}
		pid = parents[pid]
	}
	return false
}

// errNoMemory is of a process that has none: it ends, or is the kernel's.
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

// parseRollup reads the lines "Rss: N kB" and "Anonymous: N kB".
func parseRollup(text string) (ProcMemory, error) {
	if text == "" {
		return ProcMemory{}, errNoMemory
	}
	var m ProcMemory
	for key, to := range map[string]*int64{"Rss": &m.Resident, "Anonymous": &m.Anonymous} {
		number, _, ok := strings.Cut(field(text, key), " ")
		kib, err := strconv.ParseInt(number, 10, 64)
		if !ok || err != nil {
			return ProcMemory{}, fmt.Errorf("read smaps_rollup: no line %s", key)
		}
		*to = kib << 10
	}
	return m, nil
}
