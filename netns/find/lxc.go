package find

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"cleat/internal/columns"
)

// lxc is LXC, alone or under Incus or LXD.
type lxc struct {
	scope
	ms *monitors
}

// lxcHome is a directory with one subdirectory for each container.
type lxcHome struct {
	dir, space, config string
	start              string // command that starts a container
	owner              int
}

func (l lxc) homes() []lxcHome {
	var all []lxcHome
	if l.has(0) {
		all = []lxcHome{
			{"/var/lib/lxc", "", "config", "lxc-start", 0},
			{"/var/lib/incus/containers", "incus", "", "incus start", 0},
			{"/var/lib/lxd/containers", "lxd", "", "lxc start", 0},
			{"/var/snap/lxd/common/lxd/containers", "lxd", "", "lxc start", 0},
		}
	}
	for _, u := range l.users() {
		if u.uid != 0 {
			all = append(all, lxcHome{u.home + "/.local/share/lxc", u.name, "config", "lxc-unpriv-start", u.uid})
		}
	}
	return all
}

func (l lxc) search(context.Context, string) ([]*candidate, error) {
	watching, err := l.ms.called(l.scope, lxcNames...)
	if err != nil {
		return nil, err
	}
	var all []*candidate
	for _, x := range watching {
		if k := l.monitored(x); k != nil {
			all = addMonitored(all, k)
		}
	}
	if l.has(0) {
		all = l.addGroups(all)
	}
	all, there := l.addIdle(all)
	if len(all) == 0 && !there {
		return nil, errAbsent
	}
	return all, nil
}

// monitored returns the container of a monitor, or nil if it has none (lxd itself).
func (l lxc) monitored(x monitor) *candidate {
	k := &candidate{Found: Found{Engine: LXC, Owner: x.uid, Space: l.m.userName(x.uid)}}
	if title, found := strings.CutPrefix(x.args[0], "[lxc monitor] "); found {
		dir, name, _ := strings.Cut(title, " ")
		k.Name = name
		for _, space := range []string{"incus", "lxd"} {
			if x.uid == 0 && strings.Contains(dir, "/"+space+"/") {
				k.Space = space
			}
		}
	} else if k.Name = lxcGroup(l.m.procFile(x.pid, "cgroup")); k.Name == "" {
		return nil
	}
	k.PID = l.ms.first(x.pid, func(pid int) bool {
		return strings.Contains(l.m.procFile(pid, "cgroup"), "/"+payloadGroup)
	})
	if !l.m.complete(k) {
		k.state = cmp.Or(k.state, "stopped")
	}
	return k
}

// Names of control groups in LXC: "lxc.payload.web" and "lxc.monitor.web"; in Proxmox and
// LXC before 4.0, "lxc/web".
const (
	payloadGroup = "lxc.payload."
	monitorGroup = "lxc.monitor."
)

// lxcGroup returns the container's name from the control group of its first process or
// its monitor, or "".
func lxcGroup(cgroup string) string {
	for line := range strings.Lines(cgroup) {
		parts := strings.Split(strings.TrimSpace(line), "/")
		for i, part := range parts {
			for _, prefix := range []string{payloadGroup, monitorGroup} {
				if name, found := strings.CutPrefix(part, prefix); found {
					return name
				}
			}
			if plain := part == "lxc" || part == "lxc.payload" || part == "lxc.monitor"; plain && i+1 < len(parts) {
				return parts[i+1]
			}
		}
	}
	return ""
}

// lxcGroups returns the control groups of containers: below the root of the only
// hierarchy in version 2, or of each hierarchy in version 1 (cgroups(7)).
func (m *machine) lxcGroups() []string {
	var all []string
	for _, top := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		for _, name := range []string{payloadGroup + "*", "lxc.payload/*", "lxc/*"} {
			all = append(all, m.glob(top+"/"+name+"/cgroup.procs")...)
		}
	}
	return all
}

// addGroups adds containers whose monitors have unknown names.
func (l lxc) addGroups(all []*candidate) []*candidate {
	seen := map[int]bool{}
	for _, k := range all {
		seen[k.PID] = true
	}
	for _, file := range l.m.lxcGroups() {
		pid := l.m.firstOfGroup(filepath.Dir(file))
		if pid == 0 || seen[pid] {
			continue
		}
		seen[pid] = true
		name := strings.TrimPrefix(filepath.Base(filepath.Dir(file)), payloadGroup)
		k := &candidate{Found: Found{Engine: LXC, Name: name, PID: pid}}
		if l.m.complete(k) {
			all = append(all, k)
		}
	}
	return all
}

// firstOfGroup returns process 1 of the outermost PID namespace among the processes of a
// control group and of those below it, where systemd puts itself, or 0.
func (m *machine) firstOfGroup(dir string) int {
	best, depth := 0, 0
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.Name() != "cgroup.procs" {
			return nil // groups appear and disappear
		}
		text, _ := os.ReadFile(path)
		for word := range strings.FieldsSeq(string(text)) {
			pid, _ := strconv.Atoi(word) // 0 if it is not a number
			s := m.status(pid)
			if s.first() && (best == 0 || len(s.nspid) < depth) {
				best, depth = pid, len(s.nspid)
			}
		}
		return nil
	})
	return best
}

// addIdle adds containers that are not running, and reports whether LXC is installed at
// all.
func (l lxc) addIdle(all []*candidate) (_ []*candidate, there bool) {
	running := map[string]bool{}
	for _, k := range all {
		running[k.Space+"/"+k.Name] = true
	}
	for _, h := range l.homes() {
		info, err := os.Stat(l.m.path(h.dir))
		there = there || err == nil && info.IsDir()
		for _, name := range l.m.entries(h.dir, h.owner) {
			if _, err := os.Stat(l.m.path(h.dir + "/" + name + "/" + h.config)); err != nil || running[h.space+"/"+name] {
				continue
			}
			all = append(all, &candidate{Found: Found{Engine: LXC, Name: name, Space: h.space, Owner: h.owner},
				state: "stopped", remedy: h.start + " " + columns.Word(name)})
		}
	}
	return all, there
}
