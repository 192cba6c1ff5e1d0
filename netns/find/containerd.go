package find

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"cleat/internal/columns"
)

// containerd is the engine of ctr, nerdctl and Kubernetes. Its containers are found by
// the directories of its tasks.
type containerd struct {
	m     *machine
	tasks string // STATE/io.containerd.runtime.v2.task
	names string // nerdctl's names: NAMES/ADDRESS/names/NAMESPACE/NAME
	owner int
	who   string // "alice/", the prefix of a user's namespaces
}

const taskDir = "/io.containerd.runtime.v2.task"

// containerdDirs returns the directories of root and of users.
func (s scope) containerdDirs() []containerd {
	var all []containerd
	if s.has(0) {
		all = append(all, containerd{m: s.m, tasks: "/run/containerd" + taskDir, names: "/var/lib/nerdctl"})
	}
	for _, dir := range s.runtimeDirs() {
		c := containerd{m: s.m, tasks: dir.path + "/containerd" + taskDir, owner: dir.owner}
		if dir.owner != 0 {
			c.who = s.m.userName(dir.owner) + "/"
		}
		for _, u := range s.users() {
			if u.uid == dir.owner && u.uid != 0 {
				c.names = u.home + "/.local/share/nerdctl"
			}
		}
		all = append(all, c)
	}
	return all
}

func (c containerd) search(context.Context, string) ([]*candidate, error) {
	spaces, err := c.m.list(c.tasks, c.owner)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errAbsent
	}
	if err != nil {
		return nil, fmt.Errorf("list namespaces of tasks: %w", err)
	}
	var all []*candidate
	for _, space := range spaces {
		for _, task := range c.m.entries(c.tasks+"/"+space, c.owner) {
			if len(all) == containerMax {
				break
			}
			all = append(all, c.task(space, task))
		}
	}
	return c.addNamed(all), nil
}

// Annotations in a task's OCI configuration that hold a name.
const (
	nerdctlName  = "nerdctl/name"
	criContainer = "io.kubernetes.cri.container-name"
	criPod       = "io.kubernetes.cri.sandbox-name"
	criPodID     = "io.kubernetes.cri.sandbox-id"
	criPodSpace  = "io.kubernetes.cri.sandbox-namespace"
)

// task returns the container of a task directory.
func (c containerd) task(space, id string) *candidate {
	dir := c.tasks + "/" + space + "/" + id
	k := &candidate{Found: Found{Engine: Containerd, ID: id, Space: c.who + space, Owner: c.owner}}
	var config struct{ Annotations map[string]string }
	_ = c.m.readJSON(dir+"/config.json", c.owner, &config) // without it the id is still known
	of := config.Annotations
	switch pod := of[criPod]; {
	case of[nerdctlName] != "":
		k.Name = of[nerdctlName]
	case pod != "" && of[criContainer] != "":
		k.Name = pod + "/" + of[criContainer]
		k.sharedID = of[criPodID]
	case pod != "":
		k.Name = pod
		k.also = []string{of[criPodSpace] + "/" + pod}
	}
	k.remedy = startTask(space, id)
	text, _ := c.m.readFile(dir+"/init.pid", c.owner)
	k.PID, _ = strconv.Atoi(strings.TrimSpace(string(text))) // 0 if there is none yet
	if !c.m.vouched(k.PID, id) || !c.m.complete(k) {
		k.PID, k.state = 0, cmp.Or(k.state, "stopped")
	}
	return k
}

// addNamed adds containers that nerdctl has named and that have no task, and gives the
// others their nerdctl names.
func (c containerd) addNamed(all []*candidate) []*candidate {
	if c.names == "" {
		return all
	}
	tasks := map[string]*candidate{}
	for _, k := range all {
		tasks[k.Space+"/"+k.ID] = k
	}
	for _, named := range c.namesOf() {
		text, err := c.m.readFile(named.path, c.owner)
		id := strings.TrimSpace(string(text))
		if err != nil || id == "" {
			continue
		}
		k := tasks[c.who+named.space+"/"+id]
		if k == nil {
			k = &candidate{Found: Found{Engine: Containerd, ID: id, Space: c.who + named.space, Owner: c.owner}, state: "stopped"}
			all = append(all, k)
		}
		k.Name = named.name
		k.remedy = fmt.Sprintf("nerdctl --namespace %s start %s", columns.Word(named.space), columns.Word(named.name))
	}
	return all
}

// nerdctlFile is a file of nerdctl that holds the id of the container with this name.
type nerdctlFile struct{ path, space, name string }

func (c containerd) namesOf() []nerdctlFile {
	var all []nerdctlFile
	for _, address := range c.m.entries(c.names, c.owner) {
		dir := c.names + "/" + address + "/names"
		for _, space := range c.m.entries(dir, c.owner) {
			for _, name := range c.m.entries(dir+"/"+space, c.owner) {
				if len(all) == containerMax {
					return all
				}
				all = append(all, nerdctlFile{dir + "/" + space + "/" + name, space, name})
			}
		}
	}
	return all
}
