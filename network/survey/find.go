package survey

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// place is a namespace as the first pass finds it.
type place struct {
	id      uint64
	paths   []string // ways to open it, the lasting ones first
	names   []string
	running []process
	holder  process // who holds a descriptor on it, where nothing runs
}

// finder looks for namespaces.
type finder struct {
	proc   string   // /proc
	dirs   []string // where files stand for namespaces
	places map[uint64]*place
	pids   []int
	hidden int // processes whose namespace may not be read
}

func newFinder(proc string, dirs ...string) *finder {
	return &finder{proc: proc, dirs: dirs, places: map[uint64]*place{}}
}

// nameDirs are where ip-netns(8) and Docker keep names.
var nameDirs = []string{"/run/netns", "/run/docker/netns"}

func (f *finder) at(id uint64) *place {
	p := f.places[id]
	if p == nil {
		p = &place{id: id}
		f.places[id] = p
	}
	return p
}

// find collects everything but descriptors.
func (f *finder) find(ctx context.Context) error {
	if id := f.of("thread-self"); id != 0 {
		p := f.at(id)
		p.paths = append(p.paths, filepath.Join(f.proc, "thread-self/ns/net"))
	}
	f.named()
	f.mounted()
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
	f.processes(ctx)
	return context.Cause(ctx)
}

// named looks at the directories of names.
func (f *finder) named() {
	for _, dir := range f.dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			f.file(filepath.Join(dir, e.Name()))
		}
	}
}

// mounted looks for mounts of namespaces elsewhere.
func (f *finder) mounted() {
	text, err := os.ReadFile(filepath.Join(f.proc, "self/mountinfo"))
	if err != nil {
		return
	}
	for line := range strings.Lines(string(text)) {
		// ID parent device root mount-point options … - type source options
		before, after, ok := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if !ok || len(fields) < 5 || !strings.HasPrefix(after, "nsfs ") {
			continue
		}
		if id, ok := nsID(fields[3]); ok {
			f.name(id, unescape(fields[4]))
		}
	}
}

// nsfsMagic is NSFS_MAGIC (include/uapi/linux/magic.h).
const nsfsMagic = 0x6e736673

// file takes a file for a namespace if it is on nsfs. Whether it is one of
// networks is found out when it is opened.
func (f *finder) file(path string) {
	var st unix.Stat_t
	var on unix.Statfs_t
	if unix.Stat(path, &st) == nil && unix.Statfs(path, &on) == nil && on.Type == nsfsMagic {
		f.name(st.Ino, path)
	}
}

func (f *finder) name(id uint64, path string) {
	p := f.at(id)
	if !slices.Contains(p.names, path) {
		p.names, p.paths = append(p.names, path), append(p.paths, path)
	}
}

// seen is what one process leads to.
type seen struct {
	id     uint64
	hidden bool
	process
}

// processes looks at all of them, some at a time: nearly all of the cost is
// the kernel's.
func (f *finder) processes(ctx context.Context) {
	all := make([]seen, len(f.pids))
	each(ctx, len(f.pids), func(i int) { all[i] = f.look(f.pids[i]) })
	for _, s := range all {
		switch {
		case s.hidden:
			f.hidden++
		case s.id != 0:
			p := f.at(s.id)
			p.running = append(p.running, s.process)
			p.paths = append(p.paths, f.path(s.pid, "ns/net"))
		}
	}
}

func (f *finder) path(pid int, file string) string {
	return filepath.Join(f.proc, strconv.Itoa(pid), file)
}

// look reads one process; the zero seen stands for one that has ended, for threads
// of the kernel, and for this process, which only looks.
func (f *finder) look(pid int) seen {
	if pid == os.Getpid() {
		return seen{}
	}
	text, err := os.ReadFile(f.path(pid, "stat"))
	if err != nil {
		return seen{}
	}
	p, ok := parseStat(pid, text)
	if !ok || p.kernel {
		return seen{}
	}
	target, err := os.Readlink(f.path(pid, "ns/net"))
	if err != nil {
		return seen{hidden: errors.Is(err, fs.ErrPermission)}
	}
	id, ok := nsID(target)
	if !ok {
		return seen{}
	}
	return seen{id: id, process: p}
}

// held looks through the descriptors of all processes for namespaces that
// nothing else leads to, and returns those.
func (f *finder) held(ctx context.Context) []*place {
	type holding struct {
		id   uint64
		path string
	}
	found := make([][]holding, len(f.pids))
	each(ctx, len(f.pids), func(i int) {
		dir := f.path(f.pids[i], "fd")
		entries, err := os.ReadDir(dir)
		if err != nil {
			return
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			target, err := os.Readlink(path)
			if err != nil {
				continue
			}
			if id, ok := nsID(target); ok {
				found[i] = append(found[i], holding{id, path})
			}
		}
	})
	var out []*place
	for i, all := range found {
		for _, h := range all {
			if f.places[h.id] != nil {
				continue
			}
			text, err := os.ReadFile(f.path(f.pids[i], "stat"))
			if err != nil {
				continue
			}
			p := f.at(h.id)
			p.holder, _ = parseStat(f.pids[i], text)
			p.paths = append(p.paths, h.path)
			out = append(out, p)
		}
	}
	return out
}

// sorted are the places in an order that is the same each time.
func (f *finder) sorted() []*place {
	var out []*place
	for _, p := range f.places {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *place) int { return cmp.Compare(a.id, b.id) })
	return out
}

// of is the namespace of a process, 0 when it can't be told.
func (f *finder) of(pid string) uint64 {
	target, err := os.Readlink(filepath.Join(f.proc, pid, "ns/net"))
	if err != nil {
		return 0
	}
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

// first is the process with the lowest number, and when the oldest began.
func first(all []process) (process, time.Duration) {
	p, began := all[0], all[0].began
	for _, q := range all[1:] {
		if q.pid < p.pid {
			p = q
		}
		began = min(began, q.began)
	}
	return p, began
}

// each calls f for 0 … n-1, a few at a time, and returns when all have been or
// ctx has ended.
func each(ctx context.Context, n int, f func(int)) {
	workers := min(n, 4*runtime.GOMAXPROCS(0)) // they wait as long as they work; more gain nothing with 500 namespaces
	next := make(chan int)
	var done sync.WaitGroup
	for range workers {
		done.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	for i := 0; i < n && ctx.Err() == nil; i++ {
		next <- i
	}
	close(next)
	done.Wait()
}
