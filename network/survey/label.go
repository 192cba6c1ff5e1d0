package survey

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Name is what somebody else knows of what runs in a namespace.
type Name struct {
	Container string // e.g. "web"
	Runtime   string // e.g. "docker"
}

// labeller gives each namespace a label of its own.
type labeller struct {
	proc  string
	host  uint64 // process 1's; 0: it can't be told
	here  uint64
	names map[uint64]Name
}

// apply fills in what a namespace is called, and by what it is known.
func (g labeller) apply(n *Namespace, p *place) {
	n.Names = p.names
	slices.Sort(n.Names)
	n.Programs = programs(p.running)
	n.Processes = len(p.running)
	if len(p.running) > 0 {
		leader, _ := first(p.running)
		n.PID = leader.pid
	}
	switch {
	case p.id == g.host:
		n.Origin, n.Label = OfHost, "host"
		return
	case g.host == 0 && p.id == g.here:
		n.Origin, n.Label = OfHere, "here"
		return
	}
	g.container(n)
	switch {
	case n.Container != "":
		n.Origin, n.Label = OfContainer, n.Container
	case len(n.Names) > 0:
		n.Origin, n.Label = OfName, filepath.Base(shortest(n.Names))
	case n.PID != 0:
		leader, _ := first(p.running)
		n.Origin, n.Label = OfProcess, leader.name+":"+strconv.Itoa(n.PID)
	default:
		n.Origin, n.Label = OfHolder, "held-by-"+p.holder.name+":"+strconv.Itoa(p.holder.pid)
	}
}

// container asks who was told, and then the control group of the first process.
func (g labeller) container(n *Namespace) {
	if known, ok := g.names[n.ID]; ok && known.Container != "" {
		n.Container, n.Runtime = known.Container, known.Runtime
		return
	}
	if n.PID == 0 {
		return
	}
	if text, err := os.ReadFile(filepath.Join(g.proc, strconv.Itoa(n.PID), "cgroup")); err == nil {
		n.Runtime, n.Container = containerOf(string(text))
	}
}

// shortest is the name under /run/netns rather than a longer path.
func shortest(names []string) string {
	return slices.MinFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	})
}

// qualify puts the engine in front of the name of containers that have it together
// with those of another engine: "podman:web" can be typed then.
func qualify(all []Namespace) {
	engines := map[string]map[string]bool{}
	for _, n := range all {
		if n.Origin != OfContainer || n.Runtime == "" {
			continue
		}
		if engines[n.Container] == nil {
			engines[n.Container] = map[string]bool{}
		}
		engines[n.Container][n.Runtime] = true
	}
	for i, n := range all {
		if n.Origin == OfContainer && n.Runtime != "" && len(engines[n.Container]) > 1 {
			all[i].Label = n.Runtime + ":" + n.Container
		}
	}
}

// distinct numbers labels that are there twice.
func distinct(all []Namespace) {
	used := map[string]bool{}
	for i := range all {
		label := all[i].Label
		for k := 2; used[all[i].Label]; k++ {
			all[i].Label = fmt.Sprintf("%s#%d", label, k)
		}
		used[all[i].Label] = true
	}
}

// order puts the host first, then ours, then by label.
func order(all []Namespace) {
	rank := func(n Namespace) int {
		switch n.Origin {
		case OfHost:
			return 0
		case OfHere:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(all, func(a, b Namespace) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), Natural(a.Label, b.Label), cmp.Compare(a.ID, b.ID))
	})
}

// Natural compares names as people count: "veth9" is before "veth10".
func Natural(a, b string) int {
	for a != "" && b != "" {
		x, y := digits(a), digits(b)
		if x == 0 || y == 0 {
			if a[0] != b[0] {
				return cmp.Compare(a[0], b[0])
			}
			a, b = a[1:], b[1:]
			continue
		}
		m, n := strings.TrimLeft(a[:x], "0"), strings.TrimLeft(b[:y], "0")
		if c := cmp.Or(cmp.Compare(len(m), len(n)), cmp.Compare(m, n), cmp.Compare(x, y)); c != 0 {
			return c
		}
		a, b = a[x:], b[y:]
	}
	return cmp.Compare(len(a), len(b))
}

// digits is how many s begins with.
func digits(s string) int {
	n := 0
	for n < len(s) && '0' <= s[n] && s[n] <= '9' {
		n++
	}
	return n
}
