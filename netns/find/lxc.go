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

// lxc is LXC, by itself or below Incus or LXD.
type lxc struct {
	scope
	ms *monitors
}

// lxcHome is a directory with one of each container.
type lxcHome struct {
	dir, space, config string
	start              string // the command that starts one
	owner              int
}

// homes are the usual directories.
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

func (l lxc) search(context.Context, string) ([]*known, error) {
	watching, err := l.ms.called(l.scope, lxcNames...)
	if err != nil {
		return nil, err
	}
	var all []*known
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

// monitored is the container of a monitor; nil where it has none: lxd itself.
func (l lxc) monitored(x monitor) *known {
	k := &known{Found: Found{Engine: LXC, Owner: x.uid, Space: l.m.userName(x.uid)}}
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

// What LXC calls control groups: "lxc.payload.web" and "lxc.monitor.web"; Proxmox,
// and LXC before 4.0, "lxc/web".
const (
	payloadGroup = "lxc.payload."
	monitorGroup = "lxc.monitor."
)

// lxcGroup is the container's name in the control group of its first process, or of
// its monitor; "" in others.
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

// lxcGroups are where the control groups of containers are: below the top of the
// only hierarchy, of version 2, or of each one, of version 1 (cgroups(7)).
func (m *machine) lxcGroups() []string {
	var all []string
	for _, top := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		for _, name := range []string{payloadGroup + "*", "lxc.payload/*", "lxc/*"} {
			all = append(all, m.glob(top+"/"+name+"/cgroup.procs")...)
		}
	}
	return all
}

// addGroups adds containers whose monitors are called otherwise than we know.
func (l lxc) addGroups(all []*known) []*known {
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
		k := &known{Found: Found{Engine: LXC, Name: name, PID: pid}}
		if l.m.complete(k) {
			all = append(all, k)
		}
	}
	return all
}

// firstOfGroup is process 1 of the outermost PID namespace among the processes of
// a control group and those below it, where systemd puts itself; 0 if none is.
func (m *machine) firstOfGroup(dir string) int {
	best, depth := 0, 0
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.Name() != "cgroup.procs" {
			return nil // groups come and go
		}
		text, _ := os.ReadFile(path)
		for word := range strings.FieldsSeq(string(text)) {
			pid, _ := strconv.Atoi(word) // 0, nobody, if it is no number
			s := m.status(pid)
			if s.first() && (best == 0 || len(s.nspid) < depth) {
				best, depth = pid, len(s.nspid)
			}
		}
		return nil
	})
	return best
}

// addIdle adds the containers that don't run, and tells whether there is LXC at all.
func (l lxc) addIdle(all []*known) (_ []*known, there bool) {
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
			all = append(all, &known{Found: Found{Engine: LXC, Name: name, Space: h.space, Owner: h.owner},
				state: "stopped", remedy: h.start + " " + columns.Word(name)})
		}
	}
	return all, there
}
