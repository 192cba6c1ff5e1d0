package find

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// containerd is the engine of ctr, nerdctl and Kubernetes, known by the directories
// of its tasks.
type containerd struct {
	m     *machine
	tasks string // STATE/io.containerd.runtime.v2.task
	names string // where nerdctl has its names: NAMES/ADDRESS/names/NAMESPACE/NAME
	owner int
}

const taskDir = "/io.containerd.runtime.v2.task"

// containerdDirs are root's, and those of users.
func (m *machine) containerdDirs() []containerd {
	all := []containerd{{m, "/run/containerd" + taskDir, "/var/lib/nerdctl", 0}}
	users := m.users()
	for _, dir := range m.runtimeDirs() {
		tasks := dir + "/containerd" + taskDir
		owner, err := ownerOf(m.path(tasks))
		if err != nil {
			continue
		}
		c := containerd{m, tasks, "", owner}
		for _, u := range users {
			if u.uid == owner {
				c.names = u.home + "/.local/share/nerdctl"
			}
		}
		all = append(all, c)
	}
	return all
}

func (c containerd) search(context.Context, string) ([]*known, error) {
	spaces, err := os.ReadDir(c.m.path(c.tasks))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errAbsent
	}
	if err != nil {
		return nil, fmt.Errorf("list namespaces of tasks: %w", err)
	}
	var all []*known
	for _, space := range spaces {
		tasks, err := os.ReadDir(c.m.path(c.tasks + "/" + space.Name()))
		if err != nil {
			return all, fmt.Errorf("list tasks: %w", err)
		}
		for _, task := range tasks {
			all = append(all, c.task(space.Name(), task.Name()))
		}
	}
	return c.addNamed(all), nil
}

// annotations of a task's OCI configuration by which it has a name.
const (
	nerdctlName  = "nerdctl/name"
	criContainer = "io.kubernetes.cri.container-name"
	criPod       = "io.kubernetes.cri.sandbox-name"
	criPodID     = "io.kubernetes.cri.sandbox-id"
	criPodSpace  = "io.kubernetes.cri.sandbox-namespace"
)

// task is the container of a task's directory.
func (c containerd) task(space, id string) *known {
	dir := c.tasks + "/" + space + "/" + id
	k := &known{Found: Found{Engine: Containerd, ID: id, Space: space, Owner: c.owner}}
	var config struct{ Annotations map[string]string }
	_ = c.m.readJSON(dir+"/config.json", &config) // without it there is still the id
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
	text, _ := c.m.readFile(dir + "/init.pid")
	k.PID, _ = strconv.Atoi(strings.TrimSpace(string(text))) // 0: there is none yet
	if !c.m.vouched(k.PID, id, c.owner) || !c.m.complete(k) {
		k.PID, k.state = 0, "stopped"
	}
	return k
}

// addNamed adds the containers that nerdctl has names for and that have no task,
// and gives the others the names that they have there.
func (c containerd) addNamed(all []*known) []*known {
	if c.names == "" {
		return all
	}
	tasks := map[string]*known{}
	for _, k := range all {
		tasks[k.Space+"/"+k.ID] = k
	}
	for _, file := range c.m.glob(c.names + "/*/names/*/*") {
		file = strings.TrimPrefix(file, c.m.root)
		text, err := c.m.readFile(file)
		id := strings.TrimSpace(string(text))
		if err != nil || id == "" {
			continue
		}
		name, space := filepath.Base(file), filepath.Base(filepath.Dir(file))
		k := tasks[space+"/"+id]
		if k == nil {
			k = &known{Found: Found{Engine: Containerd, ID: id, Space: space, Owner: c.owner}, state: "stopped"}
			all = append(all, k)
		}
		k.Name = name
		k.remedy = fmt.Sprintf("nerdctl --namespace %s start %s", space, name)
	}
	return all
}
