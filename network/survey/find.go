package survey

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// candidate is a namespace as the first pass finds it.
type candidate struct {
	id        uint64
	paths     []string // that it can be opened by, the lasting ones first
	names     []string
	processes []process
	holder    process // a process elsewhere that holds a descriptor, if no process is inside
}

type finder struct {
	proc       string   // /proc
	nameDirs   []string // directories of files that stand for namespaces
	candidates map[uint64]*candidate
	pids       []int
	hidden     int // processes whose namespace may not be read
}

func newFinder(proc string, dirs ...string) *finder {
	return &finder{proc: proc, nameDirs: dirs, candidates: map[uint64]*candidate{}}
}

// nameDirs are where ip-netns(8) and Docker keep names.
var nameDirs = []string{"/run/netns", "/run/docker/netns"}

func (f *finder) candidate(id uint64) *candidate {
	c := f.candidates[id]
	if c == nil {
		c = &candidate{id: id}
		f.candidates[id] = c
	}
	return c
}

// find collects everything but descriptors.
func (f *finder) find(ctx context.Context) error {
	if id := f.namespaceOf("thread-self"); id != 0 {
		c := f.candidate(id)
		c.paths = append(c.paths, filepath.Join(f.proc, "thread-self/ns/net"))
	}
	for _, dir := range f.nameDirs {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			f.addFile(filepath.Join(dir, e.Name()))
		}
	}
	f.readMounts()
	entries, err := os.ReadDir(f.proc)
	if err != nil {
		return fmt.Errorf("list processes: %w", err)
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			f.pids = append(f.pids, pid)
		}
	}
	slices.Sort(f.pids)
	f.readProcesses(ctx)
	return context.Cause(ctx)
}

// readMounts finds namespaces that are mounted anywhere.
func (f *finder) readMounts() {
	text, _ := os.ReadFile(filepath.Join(f.proc, "self/mountinfo"))
	for line := range strings.Lines(string(text)) {
		// ID parent device root mount-point options … - type source options
		before, after, ok := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if !ok || len(fields) < 5 || !strings.HasPrefix(after, "nsfs ") {
			continue
		}
		if id, ok := nsID(fields[3]); ok {
			f.addName(id, unescape(fields[4]))
		}
	}
}

// addFile adds the namespace that a file on nsfs stands for. Opening it will show whether it is a
// network namespace.
func (f *finder) addFile(path string) {
	var st unix.Stat_t
	var on unix.Statfs_t
	if unix.Stat(path, &st) == nil && unix.Statfs(path, &on) == nil && on.Type == unix.NSFS_MAGIC {
		f.addName(st.Ino, path)
	}
}

func (f *finder) addName(id uint64, path string) {
	c := f.candidate(id)
	if !slices.Contains(c.names, path) {
		c.names, c.paths = append(c.names, path), append(c.paths, path)
	}
}

// sighting is the namespace of a process.
type sighting struct {
	id     uint64 // 0 if the process does not count
	hidden bool   // the namespace may not be read
	process
}

// readProcesses reads the namespaces of all processes, several at a time: nearly all of the cost
// is the kernel's.
func (f *finder) readProcesses(ctx context.Context) {
	all := make([]sighting, len(f.pids))
	each(ctx, len(f.pids), func(i int) { all[i] = f.inspect(f.pids[i]) })
	for _, s := range all {
		switch {
		case s.hidden:
			f.hidden++
		case s.id != 0:
			c := f.candidate(s.id)
			c.processes = append(c.processes, s.process)
			c.paths = append(c.paths, f.path(s.pid, "ns/net"))
		}
	}
}

func (f *finder) path(pid int, file string) string {
	return filepath.Join(f.proc, strconv.Itoa(pid), file)
}

// inspect reads one process. Processes that have ended, kernel threads and this process, which
// only surveys, don't count.
func (f *finder) inspect(pid int) sighting {
	if pid == os.Getpid() {
		return sighting{}
	}
	text, err := os.ReadFile(f.path(pid, "stat"))
	if err != nil {
		return sighting{}
	}
	p, ok := parseStat(pid, text)
	if !ok || p.kernelThread {
		return sighting{}
	}
	target, err := os.Readlink(f.path(pid, "ns/net"))
	if err != nil {
		return sighting{hidden: errors.Is(err, fs.ErrPermission)}
	}
	id, _ := nsID(target)
	return sighting{id: id, process: p}
}

// findHeld returns the namespaces that only descriptors of processes lead to.
func (f *finder) findHeld(ctx context.Context) []*candidate {
	type descriptor struct {
		id   uint64
		path string
	}
	found := make([][]descriptor, len(f.pids))
	each(ctx, len(f.pids), func(i int) {
		dir := f.path(f.pids[i], "fd")
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			target, _ := os.Readlink(path)
			if id, ok := nsID(target); ok {
				found[i] = append(found[i], descriptor{id, path})
			}
		}
	})
	var out []*candidate
	for i, all := range found {
		for _, d := range all {
			if f.candidates[d.id] != nil {
				continue
			}
			text, err := os.ReadFile(f.path(f.pids[i], "stat"))
			if err != nil {
				continue
			}
			c := f.candidate(d.id)
			c.holder, _ = parseStat(f.pids[i], text)
			c.paths = append(c.paths, d.path)
			out = append(out, c)
		}
	}
	return out
}

// sorted returns the candidates in the same order each time.
func (f *finder) sorted() []*candidate {
	return slices.SortedFunc(maps.Values(f.candidates), func(a, b *candidate) int { return cmp.Compare(a.id, b.id) })
}

// namespaceOf returns the namespace of a process, 0 if it can't be read.
func (f *finder) namespaceOf(pid string) uint64 {
	target, _ := os.Readlink(filepath.Join(f.proc, pid, "ns/net"))
	id, _ := nsID(target)
	return id
}

// programs counts processes by name, the most frequent first.
func programs(all []process) []Program {
	count := map[string]int{}
	for _, p := range all {
		count[p.name]++
	}
	var out []Program
	for name, n := range count {
		out = append(out, Program{name, n})
	}
	slices.SortFunc(out, func(a, b Program) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// first returns the process with the lowest id, and when the oldest process started, as the time
// since boot.
func first(all []process) (p process, oldest time.Duration) {
	p = slices.MinFunc(all, func(a, b process) int { return cmp.Compare(a.pid, b.pid) })
	return p, slices.MinFunc(all, func(a, b process) int { return cmp.Compare(a.startedAfterBoot, b.startedAfterBoot) }).startedAfterBoot
}

// each calls f for 0 … n-1, several at a time, until all calls have returned or ctx has ended.
func each(ctx context.Context, n int, f func(int)) {
	var g errgroup.Group
	g.SetLimit(4 * runtime.GOMAXPROCS(0)) // they wait as long as they work; more gain nothing with 500 namespaces
	for i := 0; i < n && ctx.Err() == nil; i++ {
		g.Go(func() error { f(i); return nil })
	}
	_ = g.Wait()
}
