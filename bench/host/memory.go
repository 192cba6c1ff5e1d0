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

// TreeMemory is the resident memory, in bytes, of the processes given and all
// their descendants: what smaps_rollup calls Rss. A page that several of them
// share counts for each, and what the kernel holds for them (socket buffers)
// does not count. A process that ends meanwhile counts as nothing, as long as
// one is left. It wants CAP_SYS_PTRACE over the processes' user namespace.
func TreeMemory(roots ...int) (int64, error) {
	parents, err := parentsOfAll()
	if err != nil {
		return 0, err
	}
	var sum int64
	counted := 0
	for pid := range parents {
		if !slices.ContainsFunc(roots, func(root int) bool { return descends(parents, pid, root) }) {
			continue
		}
		rss, err := resident(pid)
		switch {
		case errors.Is(err, os.ErrNotExist) || errors.Is(err, errNoMemory):
			continue
		case err != nil:
			return 0, err
		}
		sum += rss
		counted++
	}
	if counted == 0 {
		return 0, fmt.Errorf("read the memory of processes %v: none of them is there", roots)
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

func resident(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if errors.Is(err, unix.ESRCH) {
		return 0, errNoMemory
	}
	if err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	return parseRollup(string(text))
}

// parseRollup reads the line "Rss: N kB".
func parseRollup(text string) (int64, error) {
	if text == "" {
		return 0, errNoMemory
	}
	number, _, ok := strings.Cut(field(text, "Rss"), " ")
	kib, err := strconv.ParseInt(number, 10, 64)
	if !ok || err != nil {
		return 0, errors.New("read smaps_rollup: no line Rss")
	}
	return kib << 10, nil
}
