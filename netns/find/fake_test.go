package find

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// tree is a machine made of files.
type tree struct {
	*machine
	t    *testing.T
	env  map[string]string
	nets map[string][]int // owners of network namespaces, by path
}

// ourUserNS is the caller's user namespace in a tree.
const ourUserNS = "user:[4026531837]"

// The network namespaces of a tree.
const (
	hostNet = 4026531840
	ownNet  = 4026532001
)

// newTree returns a machine on which root searches and only process 1 runs. Its path is
// short enough for sockets.
func newTree(t *testing.T) *tree {
	t.Helper()
	root, err := os.MkdirTemp("", "find-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	tr := &tree{t: t, env: map[string]string{"HOME": "/root"}, nets: map[string][]int{}}
	tr.machine = &machine{root: root, getenv: func(k string) string { return tr.env[k] }, timeout: 2 * time.Second, superuser: os.Geteuid(),
		netOwners: func(path string) ([]int, error) { return tr.nets[path], nil }}
	tr.write("/etc/passwd", fmt.Sprintf("root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1::/usr/sbin:/bin/false\nalice:x:%d:%[1]d::/home/alice:/bin/sh\n", alice))
	tr.proc(1, proc{comm: "init"})
	if err := errors.Join(os.MkdirAll(tr.path("/proc/self/ns"), 0o755), os.Symlink(ourUserNS, tr.path("/proc/self/ns/user"))); err != nil {
		t.Fatal(err)
	}
	return tr
}

// alice is an ordinary user.
const alice = 1500

func (tr *tree) write(path, text string) {
	tr.t.Helper()
	path = tr.path(path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		tr.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		tr.t.Fatal(err)
	}
}

// proc is a process of a tree. The zero value belongs to root on the host.
type proc struct {
	comm     string
	args     []string
	parent   int
	uid      int
	nspid    string // "" means only in our PID namespace
	net      uint64 // 0 means the host's
	cgroup   string
	state    string // "" means S
	children []int
	caps     string // effective capabilities; "" means all
	userNS   string // "" means ours
	netOwner int    // uid of the creator of the user namespace that owns the network
}

// start returns the start time of the process with this number.
func startOf(pid int) uint64 { return uint64(pid) * 100 }

func (tr *tree) proc(pid int, p proc) {
	tr.t.Helper()
	dir := fmt.Sprintf("/proc/%d/", pid)
	if p.nspid == "" {
		p.nspid = fmt.Sprint(pid)
	}
	if p.net == 0 {
		p.net = hostNet
	}
	if p.caps == "" {
		p.caps = "000001ffffffffff"
	}
	if p.userNS == "" {
		p.userNS = ourUserNS
	}
	if p.state == "" {
		p.state = "S"
	}
	tr.nets[tr.path(dir+"ns/net")] = []int{p.netOwner, 0}
	tr.write(dir+"comm", p.comm+"\n")
	tr.write(dir+"cmdline", strings.Join(p.args, "\x00")+"\x00")
	tr.write(dir+"cgroup", p.cgroup)
	tr.write(dir+"status", fmt.Sprintf("Name:\t%s\nUid:\t%d\t%[2]d\t%[2]d\t%[2]d\nNSpid:\t%s\nCapEff:\t%s\n", p.comm, p.uid, p.nspid, p.caps))
	tr.write(dir+"stat", fmt.Sprintf("%d (%s) %s %d 0 0 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 %d 0 0\n", pid, p.comm, p.state, p.parent, startOf(pid)))
	tr.write(fmt.Sprintf("%stask/%d/children", dir, pid), strings.Trim(fmt.Sprint(p.children), "[]"))
	if err := os.MkdirAll(tr.path(dir+"ns"), 0o755); err != nil {
		tr.t.Fatal(err)
	}
	for name, target := range map[string]string{"net": fmt.Sprintf("net:[%d]", p.net), "user": p.userNS} {
		if err := os.Symlink(target, tr.path(dir+"ns/"+name)); err != nil {
			tr.t.Fatal(err)
		}
	}
}

// gone ends a process.
func (tr *tree) gone(pid int) {
	if err := os.RemoveAll(tr.path(fmt.Sprintf("/proc/%d", pid))); err != nil {
		tr.t.Fatal(err)
	}
}

// serve serves HTTP on a socket.
func (tr *tree) serve(socket string, h http.Handler) {
	tr.t.Helper()
	if err := os.MkdirAll(filepath.Dir(tr.path(socket)), 0o755); err != nil {
		tr.t.Fatal(err)
	}
	l, err := net.Listen("unix", tr.path(socket))
	if err != nil {
		tr.t.Fatal(err)
	}
	s := &http.Server{Handler: h}
	go s.Serve(l)
	tr.t.Cleanup(func() { s.Close() })
}

// daemon is a Docker engine with these containers.
type daemon []inspected

// one is a container of a daemon; pid 0 means that it has exited.
func one(id, name string, pid int, network string) inspected {
	var i inspected
	i.ID, i.Name, i.HostConfig.NetworkMode = id, "/"+name, network
	i.State.Pid, i.State.Running, i.State.Status = pid, pid != 0, "running"
	if pid == 0 {
		i.State.Status = "exited"
	}
	return i
}

func (d daemon) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer := func(code int, body any) {
		w.WriteHeader(code)
		json.NewEncoder(w).Encode(body)
	}
	if r.URL.Path == "/containers/json" {
		var all []listed
		for _, c := range d {
			l := listed{ID: c.ID, Names: []string{c.Name}, State: c.State.Status}
			l.HostConfig.NetworkMode = c.HostConfig.NetworkMode
			all = append(all, l)
		}
		answer(http.StatusOK, all)
		return
	}
	word := strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/containers/"), "/json")
	var some []inspected
	for _, c := range d {
		if c.Name == "/"+word || c.ID == word {
			answer(http.StatusOK, c)
			return
		}
		if strings.HasPrefix(c.ID, word) {
			some = append(some, c)
		}
	}
	switch len(some) {
	case 0:
		answer(http.StatusNotFound, map[string]string{"message": "No such container: " + word})
	case 1:
		answer(http.StatusOK, some[0])
	default:
		answer(http.StatusBadRequest, map[string]string{"message": "multiple IDs found with provided prefix: " + word})
	}
}

// id returns a full container id with this prefix.
func id(begin string) string { return begin + strings.Repeat("0", 64-len(begin)) }
