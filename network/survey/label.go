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

// Name is the container in a namespace as its engine names it.
type Name struct {
	Container string // e.g. "web"
	Runtime   string // e.g. "docker"
}

// labeller gives each namespace a label of its own.
type labeller struct {
	proc  string
	host  uint64 // namespace of process 1; 0 if it is not known
	here  uint64 // our own
	names map[uint64]Name
}

// apply sets the namespace's label, and what it is made from.
func (g labeller) apply(n *Namespace, c *candidate) {
	n.Names = c.names
	slices.Sort(n.Names)
	n.Programs = programs(c.processes)
	n.Processes = len(c.processes)
	var leader process
	if len(c.processes) > 0 {
		leader, _ = first(c.processes)
		n.PID = leader.pid
	}
	switch {
	case c.id == g.host:
		n.Origin, n.Label = OriginHost, "host"
		return
	case g.host == 0 && c.id == g.here:
		n.Origin, n.Label = OriginHere, "here"
		return
	}
	g.container(n)
	switch {
	case n.Container != "":
		n.Origin, n.Label = OriginContainer, n.Container
	case len(n.Names) > 0:
		n.Origin, n.Label = OriginName, filepath.Base(shortest(n.Names))
	case n.PID != 0:
		n.Origin, n.Label = OriginProcess, leader.name+":"+strconv.Itoa(n.PID)
	default:
		n.Origin, n.Label = OriginHolder, "held-by-"+c.holder.name+":"+strconv.Itoa(c.holder.pid)
	}
}

// container sets the container: as the engine names it, or by the control group of the first
// process.
func (g labeller) container(n *Namespace) {
	if known, ok := g.names[n.ID]; ok && known.Container != "" {
		n.Container, n.Runtime = known.Container, known.Runtime
		return
	}
	if n.PID == 0 {
		return
	}
	text, _ := os.ReadFile(filepath.Join(g.proc, strconv.Itoa(n.PID), "cgroup"))
	n.Runtime, n.Container = containerOf(string(text))
}

// shortest returns the shortest name: the one under /run/netns rather than a longer path.
func shortest(names []string) string {
	return slices.MinFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	})
}

// qualify puts the engine in front of a container's name if containers of several engines have
// that name. "podman:web" can be typed as well.
func qualify(all []Namespace) {
	engine, ambiguous := map[string]string{}, map[string]bool{} // by name of the container
	for _, n := range all {
		if n.Origin == OriginContainer && n.Runtime != "" {
			other := cmp.Or(engine[n.Container], n.Runtime)
			ambiguous[n.Container] = ambiguous[n.Container] || other != n.Runtime
			engine[n.Container] = other
		}
	}
	for i, n := range all {
		if n.Origin == OriginContainer && n.Runtime != "" && ambiguous[n.Container] {
			all[i].Label = n.Runtime + ":" + n.Container
		}
	}
}

// numberDuplicates makes equal labels different by a number.
func numberDuplicates(all []Namespace) {
	used := map[string]bool{}
	for i := range all {
		label := all[i].Label
		for k := 2; used[all[i].Label]; k++ {
			all[i].Label = fmt.Sprintf("%s#%d", label, k)
		}
		used[all[i].Label] = true
	}
}

// sortNamespaces puts the host first, then our own namespace, then the others by label.
func sortNamespaces(all []Namespace) {
	rank := func(n Namespace) int {
		switch n.Origin {
		case OriginHost:
			return 0
		case OriginHere:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(all, func(a, b Namespace) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), Natural(a.Label, b.Label), cmp.Compare(a.ID, b.ID))
	})
}

// Natural compares names with the numbers in them as numbers: "veth9" comes before "veth10".
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

// digits returns how many digits s begins with.
func digits(s string) int {
	n := 0
	for n < len(s) && '0' <= s[n] && s[n] <= '9' {
		n++
	}
	return n
}
