package find

import (
	"cmp"
	"context"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"cleat/internal/columns"
)

// podman is Podman without its service.
type podman struct {
	scope
	ms *monitors
}

// storageDir is below /var/lib for root and below ~/.local/share for users.
const storageDir = "containers/storage"

func (p podman) search(context.Context, string) ([]*candidate, error) {
	conmons, err := p.ms.called(p.scope, conmonNames...)
	if err != nil {
		return nil, err
	}
	stores := map[string]int{} // containers.json files, with the uid of their owners
	var all []*candidate
	for _, c := range conmons {
		id, bundle := c.option("-c"), c.option("-b")
		if id == "" || !filepath.IsAbs(bundle) || c.option("-u") != id {
			continue // the monitor of another command in the container (podman exec)
		}
		k := &candidate{Found: Found{Engine: Podman, ID: id, Name: c.option("-n"),
			Space: p.m.userName(c.uid), Owner: c.uid, PID: p.first(c, id)}}
		if !p.m.complete(k) {
			k.state = cmp.Or(k.state, "stopped")
		}
		all = addMonitored(all, k)
		// STORAGE/overlay-containers/ID/userdata
		stores[filepath.Join(filepath.Dir(filepath.Dir(bundle)), "containers.json")] = c.uid
	}
	there := p.usual(stores)
	for store, uid := range stores {
		all = p.addStored(all, store, uid)
	}
	if len(all) == 0 && !there {
		return nil, errAbsent
	}
	return all, nil
}

// first returns the first process of a conmon's container, which may use the host's PID
// namespace.
func (p podman) first(c monitor, id string) int {
	text, _ := p.m.readFile(c.option("-p"), c.uid) // "" if it is not readable
	written := strings.TrimSpace(string(text))
	return p.ms.first(c.pid, func(pid int) bool {
		return strconv.Itoa(pid) == written || inGroup(p.m.procFile(pid, "cgroup"), id)
	})
}

// usual adds the stores in Podman's usual directories, and reports whether there are any.
func (p podman) usual(stores map[string]int) bool {
	there := false
	add := func(dir string, uid int) {
		for _, driver := range p.m.entries(dir, uid) {
			if strings.HasSuffix(driver, "-containers") {
				stores[dir+"/"+driver+"/containers.json"] = uid
				there = true
			}
		}
	}
	if p.has(0) {
		add("/var/lib/"+storageDir, 0)
	}
	for _, u := range p.users() {
		add(u.home+"/.local/share/"+storageDir, u.uid)
	}
	return there
}

// addStored adds the containers of a store that are not running, and gives the others
// their names in the store, because a container may have been renamed.
func (p podman) addStored(all []*candidate, store string, uid int) []*candidate {
	var stored []struct {
		ID    string
		Names []string
	}
	if p.m.readJSON(store, uid, &stored) != nil {
		return all // running containers are known without it
	}
	stored = stored[:min(len(stored), containerMax)]
	for _, s := range stored {
		if len(s.Names) == 0 {
			continue
		}
		i := slices.IndexFunc(all, func(k *candidate) bool { return k.ID == s.ID && k.Owner == uid })
		if i < 0 {
			i = len(all)
			all = append(all, &candidate{Found: Found{Engine: Podman, ID: s.ID, Space: p.m.userName(uid), Owner: uid}, state: "stopped"})
		}
		k := all[i]
		k.Name, k.also = s.Names[0], s.Names[1:]
		k.remedy = "podman start " + columns.Word(k.Name)
		switch {
		case uid == p.m.uid:
		case uid == 0:
			k.remedy = "sudo " + k.remedy
		default:
			k.remedy = "sudo -iu " + columns.Word(k.Space) + " " + k.remedy
		}
	}
	return all
}

// option returns the word after an option of a monitor, or "".
func (x monitor) option(name string) string {
	if i := slices.Index(x.args, name); i >= 0 && i+1 < len(x.args) {
		return x.args[i+1]
	}
	return ""
}
