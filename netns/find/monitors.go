package find

import (
	"cmp"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// monitor is a process that supervises one container and is its parent.
type monitor struct {
	pid  int
	comm string // proc(5)
	uid  int
	args []string // its command line, or its title as one word
}

// monitors scans all processes once for the monitors of Podman, LXC and Apptainer.
type monitors struct {
	m    *machine
	once sync.Once
	all  []monitor
	err  error
	// scan returns the children of each process, for kernels that do not list them.
	scan func() map[int][]int
}

func newMonitors(m *machine) *monitors {
	return &monitors{m: m, scan: sync.OnceValue(m.families)}
}

// called returns the monitors in a scope with one of these names, oldest first. It reads
// no other command lines: they are in the memory of a process, whose user can block the
// reader for ever.
func (ms *monitors) called(s scope, names ...string) ([]monitor, error) {
	ms.once.Do(ms.find)
	var some []monitor
	for _, x := range ms.all {
		if slices.Contains(names, x.comm) && s.has(x.uid) {
			x.args = ms.m.commandLine(x.pid)
			some = append(some, x)
		}
	}
	return some, ms.err
}

// Names of monitors (proc(5), comm, at most 15 characters).
var (
	conmonNames    = []string{"conmon"}
	lxcNames       = []string{"lxc-start", "lxc-execute", "lxc-autostart", "lxd", "incusd"}
	apptainerNames = []string{"starter", "starter-suid"}
)

func (ms *monitors) find() {
	pids, err := ms.m.pids()
	if err != nil {
		ms.err = err
		return
	}
	slices.Sort(pids)
	known := slices.Concat(conmonNames, lxcNames, apptainerNames)
	for _, pid := range pids {
		comm := ms.m.comm(pid)
		if !slices.Contains(known, comm) {
			continue
		}
		s := ms.m.status(pid)
		if s.uid < 0 || s.nested() || s.uid == 0 && !ms.m.isRoots(pid, s) {
			continue
		}
		ms.all = append(ms.all, monitor{pid: pid, comm: comm, uid: s.uid})
	}
}

// isRoots reports whether a process with root's uid has root's rights. A process of a
// container that shares the host's process ids also has the uid, and any name it likes.
func (m *machine) isRoots(pid int, s status) bool {
	if !s.admin {
		return false
	}
	own := m.userNS("self")
	return m.uid != 0 || own == m.userNS(strconv.Itoa(pid)) // a caller without root's rights cannot tell, and gains nothing from a false answer
}

// userNS returns the user namespace of a process, or "" if unknown.
func (m *machine) userNS(pid string) string {
	link, _ := os.Readlink(m.path("/proc/" + pid + "/ns/user"))
	return link
}

// first returns the first process of a monitor's container: process 1 of a PID namespace
// or, for a container without one, a child for which says returns true. It returns 0 if
// there is none. Other children are hooks and clean-up programs.
func (ms *monitors) first(monitor int, says func(pid int) bool) int {
	children := ms.children(monitor)
	for _, pid := range children {
		if ms.m.status(pid).first() {
			return pid
		}
	}
	if i := slices.IndexFunc(children, says); i >= 0 {
		return children[i]
	}
	return 0
}

// children returns the children of a process, oldest first.
func (ms *monitors) children(of int) []int {
	var all []int
	lists := ms.m.glob("/proc/" + strconv.Itoa(of) + "/task/*/children")
	for _, list := range lists {
		text, _ := os.ReadFile(list) // the thread may have ended
		for word := range strings.FieldsSeq(string(text)) {
			if pid, err := strconv.Atoi(word); err == nil {
				all = append(all, pid)
			}
		}
	}
	if len(lists) == 0 { // a kernel without CONFIG_PROC_CHILDREN
		all = ms.scan()[of]
	}
	started := func(pid int) uint64 {
		s, _ := readStat(ms.m.procDir(), pid)
		return s.start
	}
	slices.SortFunc(all, func(a, b int) int { return cmp.Or(cmp.Compare(started(a), started(b)), a-b) })
	return all
}

func (m *machine) families() map[int][]int {
	pids, _ := m.pids() // listing them has worked before
	of := map[int][]int{}
	for _, pid := range pids {
		if s, err := readStat(m.procDir(), pid); err == nil {
			of[s.parent] = append(of[s.parent], pid)
		}
	}
	return of
}

// addMonitored adds the container of a monitor. While one monitor of a container ends and
// the next one starts, they count as one container.
func addMonitored(all []*candidate, k *candidate) []*candidate {
	i := slices.IndexFunc(all, func(o *candidate) bool {
		return o.ID == k.ID && o.Name == k.Name && o.Space == k.Space && o.Owner == k.Owner && (o.state != "" || k.state != "")
	})
	switch {
	case i < 0:
		return append(all, k)
	case all[i].state != "":
		all[i] = k
	}
	return all
}
