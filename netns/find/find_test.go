package find

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cleat/lab"
	"cleat/netns"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestMain(m *testing.M) {
	if _, in := lab.Inside(); !in && os.Geteuid() == 0 && os.Getenv(lab.TestFlavour) == "" {
		os.Setenv(lab.TestFlavour, string(lab.Root)) // no engine works in a user lab
	}
	os.Exit(lab.RunTests(m))
}

func TestParse(t *testing.T) {
	for word, want := range map[string]reference{
		"web":                   {name: "web"},
		"4242":                  {engine: Process, name: "4242"},
		"pid:4242":              {engine: Process, name: "4242"},
		"pid:1/2":               {engine: Process, name: "1/2"},
		"/proc/1/ns/net":        {engine: Path, name: "/proc/1/ns/net"},
		"path:ns":               {engine: Path, name: "ns"},
		"netns:blue":            {engine: Named, name: "blue"},
		"docker:web":            {engine: Docker, name: "web"},
		"docker:4242":           {engine: Docker, name: "4242"},
		"podman:alice/web":      {engine: Podman, name: "alice/web"},
		"containerd:k8s.io/a/b": {engine: Containerd, name: "k8s.io/a/b"},
		"nerdctl:web":           {engine: Containerd, name: "web"},
		"incus:web":             {engine: LXC, space: "incus", name: "web"},
		"singularity:web":       {engine: Apptainer, name: "web"},
		"dokcer:web":            {name: "dokcer:web"},
		"4294967296":            {name: "4294967296"}, // no process has this number, but an id may begin with it
	} {
		if got := parse(word); got != want {
			t.Errorf("%s: %+v, want %+v", word, got, want)
		}
	}
}

// A machine with containers of all engines.
func everything(t *testing.T) *tree {
	tr := newTree(t)
	// Docker with cgroup v1; containerd knows the container, too.
	web := id("db12")
	tr.proc(100, proc{comm: "nginx", nspid: "100 1", net: ownNet, parent: 2, cgroup: "9:name=systemd:/docker/" + web + "\n0::/\n"})
	tr.proc(101, proc{comm: "side", nspid: "101 1", net: ownNet, parent: 2, cgroup: "0::/system.slice/docker-" + id("db34") + ".scope\n"})
	tr.proc(102, proc{comm: "agent", nspid: "102 1", parent: 2, cgroup: "0::/docker/" + id("cafe") + "\n"})
	tr.serve("/run/docker.sock", daemon{one(web, "web", 100, "bridge"), one(id("db34"), "side", 101, "container:"+web),
		one(id("cafe"), "agent", 102, "host"), one(id("dead"), "db", 0, "bridge")})
	tr.task("moby", web, 100, `{}`)
	tr.task("k8s.io", id("9a"), 110, `{"annotations":{"io.kubernetes.cri.sandbox-name":"shop","io.kubernetes.cri.sandbox-namespace":"default","io.kubernetes.cri.sandbox-id":"`+id("9a")+`"}}`)
	tr.proc(110, proc{comm: "pause", nspid: "110 1", net: 4026532010, cgroup: "0::/kubepods/cri-containerd-" + id("9a") + ".scope\n"})
	tr.task("k8s.io", id("9b"), 111, `{"annotations":{"io.kubernetes.cri.sandbox-name":"shop","io.kubernetes.cri.container-name":"till","io.kubernetes.cri.sandbox-id":"`+id("9a")+`"}}`)
	tr.proc(111, proc{comm: "till", nspid: "111 1", net: 4026532010, cgroup: "0::/kubepods/cri-containerd-" + id("9b") + ".scope\n"})
	tr.task("default", "tool", 112, `{"annotations":{"nerdctl/name":"hammer"}}`)
	tr.proc(112, proc{comm: "tool", nspid: "112 1", net: 4026532012, parent: 12})
	tr.proc(12, proc{comm: "containerd-shim", args: []string{"/usr/bin/containerd-shim-runc-v2", "-namespace", "default", "-id", "tool"}})
	tr.task("default", "old", 112, `{}`) // its process ended, and another process has the number
	tr.write("/var/lib/nerdctl/1935db59/names/default/nail", "steel")
	// Podman: root's, and alice's with the same name.
	tr.conmon(20, 0, id("ab"), "web", 120)
	tr.write("/var/lib/containers/storage/overlay-containers/containers.json", `[{"id":"`+id("ab")+`","names":["front"]},{"id":"`+id("ac")+`","names":["idle"]}]`)
	tr.conmon(21, alice, id("ad"), "mine", 121)
	tr.conmon(22, 0, id("ae"), "twin", 122)
	tr.conmon(25, 0, id("af"), "twin", 125) // from another store
	tr.conmon(26, 0, id("ca"), "cafe", 126) // the prefix of the id of Docker's agent
	tr.proc(23, proc{comm: "conmon", args: []string{"conmon", "-c", id("ab"), "-u", "another", "-b", "/x/y/z", "-n", "web"}, children: []int{120}})
	tr.proc(24, proc{comm: "conmon", nspid: "24 7", args: []string{"conmon", "-c", "in", "-u", "in", "-b", "/x/y/z", "-n", "inner"}, children: []int{120}})
	// LXC
	tr.proc(30, proc{comm: "lxc-start", args: []string{"[lxc monitor] /var/lib/lxc box"}, children: []int{129, 130}})
	tr.proc(129, proc{comm: "hook", parent: 30})
	tr.proc(130, proc{comm: "init", parent: 30, nspid: "130 1", net: 4026532030})
	tr.proc(31, proc{comm: "incusd", args: []string{"[lxc monitor] /var/lib/incus/containers box"}, children: []int{131}})
	tr.proc(131, proc{comm: "systemd", parent: 31, nspid: "131 1", net: 4026532031})
	tr.proc(32, proc{comm: "lxc-start", args: []string{"lxc-start", "-F", "-n", "fore"}, cgroup: "0::/lxc.monitor.fore\n", children: []int{132}})
	tr.proc(132, proc{comm: "init", parent: 32, nspid: "132 1", net: 4026532032})
	tr.proc(33, proc{comm: "incusd", args: []string{"incusd", "--group", "incus-admin"}, children: []int{30}})
	tr.write("/var/lib/lxc/box/config", "")
	tr.write("/var/lib/lxc/spare/config", "")
	tr.write("/var/lib/lxc/notes/readme", "")
	// Apptainer
	tr.proc(40, proc{comm: "starter", uid: alice, args: []string{"Apptainer instance: alice [sim]"}, children: []int{140}})
	tr.proc(140, proc{comm: "appinit", uid: alice, netOwner: alice, parent: 40, nspid: "140 1", net: 4026532040})
	tr.proc(41, proc{comm: "starter", uid: alice, args: []string{"Apptainer runtime parent"}, children: []int{140}})
	return tr
}

// task makes a task directory of containerd.
func (tr *tree) task(space, id string, pid int, config string) {
	dir := "/run/containerd" + taskDir + "/" + space + "/" + id
	tr.write(dir+"/config.json", config)
	tr.write(dir+"/init.pid", strconv.Itoa(pid))
}

// conmon makes a monitor with its container's first process.
func (tr *tree) conmon(pid, uid int, id, name string, first int) {
	home := "/var/lib"
	if uid != 0 {
		home = "/home/alice/.local/share"
	}
	tr.proc(pid, proc{comm: "conmon", uid: uid, children: []int{first}, args: []string{"/usr/bin/conmon", "--api-version", "1", "-c", id, "-u", id,
		"-r", "/usr/bin/crun", "-b", home + "/containers/storage/overlay-containers/" + id + "/userdata", "-n", name}})
	tr.proc(first, proc{comm: "sleep", uid: uid, netOwner: uid, parent: pid, nspid: strconv.Itoa(first) + " 1", net: 4026532000 + uint64(first), cgroup: "0::/libpod-" + id + "\n"})
}

func TestContainer(t *testing.T) {
	tr := everything(t)
	for _, tt := range []struct {
		word string
		want Found
	}{
		{"web", Found{Engine: Docker, ID: id("db12"), Name: "web", PID: 100, Net: ownNet}},
		{"docker:db12", Found{Engine: Docker, ID: id("db12"), Name: "web", PID: 100, Net: ownNet}},
		{id("db12"), Found{Engine: Docker, ID: id("db12"), Name: "web", PID: 100, Net: ownNet}},
		{"db34", Found{Engine: Docker, ID: id("db34"), Name: "side", PID: 101, Net: ownNet, SharesWith: []string{"docker:web"}}},
		{"docker:c", Found{Engine: Docker, ID: id("cafe"), Name: "agent", PID: 102, Net: hostNet, Host: true}},
		{"containerd:shop", Found{Engine: Containerd, ID: id("9a"), Name: "shop", Space: "k8s.io", PID: 110, Net: 4026532010, SharesWith: []string{"containerd:k8s.io/shop/till"}}},
		{"containerd:k8s.io/default/shop", Found{Engine: Containerd, ID: id("9a"), Name: "shop", Space: "k8s.io", PID: 110, Net: 4026532010, SharesWith: []string{"containerd:k8s.io/shop/till"}}},
		{"containerd:k8s.io/shop/till", Found{Engine: Containerd, ID: id("9b"), Name: "shop/till", Space: "k8s.io", PID: 111, Net: 4026532010, SharesWith: []string{"containerd:k8s.io/shop"}}},
		{"hammer", Found{Engine: Containerd, ID: "tool", Name: "hammer", Space: "default", PID: 112, Net: 4026532012}},
		{"ctr:default/tool", Found{Engine: Containerd, ID: "tool", Name: "hammer", Space: "default", PID: 112, Net: 4026532012}},
		{"podman:alice/" + id("ad"), Found{Engine: Podman, ID: id("ad"), Name: "mine", Space: "alice", Owner: alice, PID: 121, Net: 4026532121}},
		{"podman:alice/mine", Found{Engine: Podman, ID: id("ad"), Name: "mine", Space: "alice", Owner: alice, PID: 121, Net: 4026532121}},
		{"podman:ab", Found{Engine: Podman, ID: id("ab"), Name: "front", PID: 120, Net: 4026532120}},
		{"cafe", Found{Engine: Podman, ID: id("ca"), Name: "cafe", PID: 126, Net: 4026532126}},
		{"fore", Found{Engine: LXC, Name: "fore", PID: 132, Net: 4026532032}},
		{"incus:box", Found{Engine: LXC, Name: "box", Space: "incus", PID: 131, Net: 4026532031}},
		{"apptainer:alice/sim", Found{Engine: Apptainer, Name: "sim", Space: "alice", Owner: alice, PID: 140, Net: 4026532040}},
		{"singularity:alice/sim", Found{Engine: Apptainer, Name: "sim", Space: "alice", Owner: alice, PID: 140, Net: 4026532040}},
		{"100", Found{Engine: Process, Name: "nginx", PID: 100, Net: ownNet}},
		{"pid:121", Found{Engine: Process, Name: "sleep", Owner: alice, PID: 121, Net: 4026532121}},
	} {
		t.Run(tt.word, func(t *testing.T) {
			got, err := tr.container(t.Context(), tt.word)
			if err != nil {
				t.Fatal(err)
			}
			tt.want.Start = startOf(tt.want.PID)
			if d := cmp.Diff(&tt.want, got, cmpopts.IgnoreUnexported(Found{})); d != "" {
				t.Error(d)
			}
			// The reference finds it again.
			again, err := tr.container(t.Context(), got.Ref())
			if err != nil || again.PID != got.PID {
				t.Errorf("%s: %v, %v", got.Ref(), again, err)
			}
		})
	}
}

func TestMistakes(t *testing.T) {
	tr := everything(t)
	for _, tt := range []struct {
		word, text, hint string
	}{
		{"wbe", `no container, and no network namespace, is called "wbe"`, "did you mean docker:web?"},
		{"docker:front", `no docker container is called "front"`, "known: docker:agent, docker:db, docker:side, docker:web"},
		{"dokcer:web", `no container, and no network namespace, is called "dokcer:web"`, `did you mean docker:web?`},
		{"deaf", `no container, and no network namespace, is called "deaf"`, "docker:db"}, // similar to no name
		{"docker:", `no docker container is called ""`, "known: docker:"},
		{"db1", `no container, and no network namespace, is called "db1"`, "did you mean docker:db?"}, // too short a prefix of an id
		{"docker:db", `docker container "db" is not running: exited`, "start it: docker start db"},
		{"db", `docker container "db" is not running: exited`, "start it: docker start db"}, // not the container with the id db12…
		{"idle", `podman container "idle" is not running: stopped`, "start it: podman start idle"},
		{"nail", `containerd container "nail" in namespace "default" is not running: stopped`, "start it: nerdctl --namespace default start nail"},
		{"ctr:old", `containerd container "old" in namespace "default" is not running: stopped`, "start it: ctr --namespace default tasks start --detach old"},
		{"spare", `lxc container "spare" is not running: stopped`, "start it: lxc-start spare"},
		{"box", `"box" is ambiguous: lxc container "box", lxc container "box" of incus`, "give one of: lxc:box, lxc:incus/box"},
		{"podman:twin", `"podman:twin" is ambiguous: podman container "twin", podman container "twin"`,
			"give one of: podman:" + id("ae") + ", podman:" + id("af")},
		{"docker:d", `"docker:d" is ambiguous: docker container "side", docker container "web"`, "give one of: docker:side, docker:web"},
		{"docker:d1", `no docker container is called "d1"`, "known: "},
		{"docker:db3", "", ""},
		{"inner", `no container, and no network namespace, is called "inner"`, "known: "},
		{"99999", "there is no process 99999", "give a container, a process id"},
		{"pid:x", "there is no process x", "give a container, a process id"},
		{"/nonexistent/net", "no such network namespace: /nonexistent/net", "give a container, a process id"},
		{"netns:nobody", "no such network namespace: nobody", "give a container, a process id"},
		{"/dev/null", "/dev/null is not a network namespace", "give a container, a process id"},
	} {
		t.Run(tt.word, func(t *testing.T) {
			got, err := tr.container(t.Context(), tt.word)
			if tt.text == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil {
				t.Fatalf("found %v", got)
			}
			if !strings.Contains(err.Error(), tt.text) {
				t.Errorf("error %q, want %q", err, tt.text)
			}
			advice, _ := err.(interface{ Hint() string })
			if advice == nil || !strings.Contains(advice.Hint(), tt.hint) {
				t.Errorf("hint %q, want %q", advice.Hint(), tt.hint)
			}
			if missing := (*NotFound)(nil); errors.As(err, &missing) != errors.Is(err, netns.ErrNotFound) {
				t.Errorf("is netns.ErrNotFound: %v", errors.Is(err, netns.ErrNotFound))
			}
		})
	}
}

// A caller without root means their own containers; others' only if they have none.
func TestAnOrdinaryUser(t *testing.T) {
	tr := newTree(t)
	tr.uid = alice
	tr.conmon(20, 0, id("ab"), "web", 120)
	tr.conmon(21, alice, id("ad"), "web", 121)
	tr.conmon(22, 0, id("ae"), "db", 122)
	for word, pid := range map[string]int{"web": 121, "db": 122} {
		if got, err := tr.container(t.Context(), word); err != nil || got.PID != pid {
			t.Errorf("%s: %+v, %v", word, got, err)
		}
	}
	tr.uid = 0
	for word, pid := range map[string]int{"web": 120, "podman:alice/web": 121} {
		if got, err := tr.container(t.Context(), word); err != nil || got.PID != pid {
			t.Errorf("root, %s: %+v, %v", word, got, err)
		}
	}
}

func TestAll(t *testing.T) {
	tr := everything(t)
	s, err := tr.survey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, k := range s.candidates {
		if k.running() {
			got = append(got, k.Ref()+" "+strings.Join(k.SharesWith, " "))
		}
	}
	want := []string{"docker:agent ", "docker:side docker:web", "docker:web docker:side", "podman:cafe ", "podman:front ", "podman:twin ", "podman:twin ", "podman:alice/mine ",
		"containerd:default/hammer ", "containerd:k8s.io/shop containerd:k8s.io/shop/till", "containerd:k8s.io/shop/till containerd:k8s.io/shop",
		"lxc:box ", "lxc:fore ", "lxc:incus/box ", "apptainer:alice/sim "}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{Docker, Podman, Containerd, LXC, Named, "engines of alice"}, s.asked); d != "" || len(s.unasked) > 0 {
		t.Errorf("asked: %s; not asked: %v", d, s.unasked)
	}
}

// A machine with nothing on it.
func TestNothing(t *testing.T) {
	tr := newTree(t)
	_, err := tr.container(t.Context(), "web")
	var missing *NotFound
	if !errors.As(err, &missing) || len(missing.Unasked) > 0 || len(missing.Near()) > 0 {
		t.Errorf("got %v", err)
	}
	for _, engine := range []string{Docker, Podman, Containerd, LXC, Apptainer} {
		var unasked *Unasked
		if _, err := tr.container(t.Context(), engine+":web"); !errors.As(err, &unasked) || !strings.Contains(err.Error(), "not running here") {
			t.Errorf("%s: %v", engine, err)
		}
	}
}

// Control groups without a known monitor, in versions 1 and 2, and with a systemd that
// has moved itself.
func TestLXCGroups(t *testing.T) {
	for name, group := range map[string]string{
		"v2":             "/sys/fs/cgroup/lxc.payload.box",
		"v1":             "/sys/fs/cgroup/pids/lxc.payload.box",
		"v1, before 4.0": "/sys/fs/cgroup/memory/lxc/box",
		"Proxmox":        "/sys/fs/cgroup/lxc/box",
	} {
		for _, inner := range []string{"", "/ns/init.scope"} {
			t.Run(name+inner, func(t *testing.T) {
				tr := newTree(t)
				tr.write(group+"/cgroup.procs", "")
				tr.write(group+inner+"/cgroup.procs", "52\n51\n50\n53\n49\n")
				tr.proc(49, proc{comm: "lxc-attach"})
				tr.proc(50, proc{comm: "init", nspid: "50 1"})
				tr.proc(51, proc{comm: "init", nspid: "51 17 1"}) // a container inside the container
				tr.proc(53, proc{comm: "init", nspid: "53 18 1"})
				tr.proc(52, proc{comm: "sh", nspid: "52 2"})
				got, err := tr.container(t.Context(), "lxc:box")
				if err != nil || got.PID != 50 {
					t.Errorf("%+v, %v", got, err)
				}
			})
		}
	}
}

func TestLXCGroup(t *testing.T) {
	for cgroup, want := range map[string]string{
		"0::/lxc.payload.web\n":                                  "web",
		"0::/lxc.payload.web/init.scope\n":                       "web",
		"9:name=systemd:/lxc.monitor.web\n0::/\n":                "web",
		"0::/user.slice/user-1500.slice/x.scope/lxc.payload.a.b": "a.b",
		"4:memory:/lxc/web\n":                                    "web",
		"0::/lxc\n":                                              "",
		"0::/system.slice/lxc.service\n":                         "",
		"":                                                       "",
	} {
		if got := lxcGroup(cgroup); got != want {
			t.Errorf("%q: %q, want %q", cgroup, got, want)
		}
	}
}

// A hanging engine delays an answer only by its own timeout, and is reported.
func TestDeadSockets(t *testing.T) {
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	for name, tt := range map[string]struct {
		open func(*tree)
		want string
	}{
		"hangs": {func(tr *tree) {
			tr.serve("/run/docker.sock", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang }))
		}, "no answer within 50ms"},
		"hangs in mid-answer": {func(tr *tree) {
			tr.serve("/run/docker.sock", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Write([]byte("[{"))
				w.(http.Flusher).Flush()
				<-hang
			}))
		}, "no answer within 50ms"},
		"nobody listens": {func(tr *tree) {
			l, err := net.Listen("unix", tr.path("/run/docker.sock"))
			if err != nil {
				tr.t.Fatal(err)
			}
			l.(*net.UnixListener).SetUnlinkOnClose(false)
			l.Close()
		}, "nobody listens at /run/docker.sock"},
		"no JSON":       {func(tr *tree) { tr.serve("/run/docker.sock", http.NotFoundHandler()) }, "it answers 404"},
		"another's":     {func(tr *tree) { tr.serve("/run/docker.sock", daemon{one(id("a"), "x", 1, "bridge")}) }, "which is another process here"},
		"no process":    {func(tr *tree) { tr.serve("/run/docker.sock", daemon{one(id("a"), "x", 77, "bridge")}) }, "which is another process here"},
		"chosen, gone":  {func(tr *tree) { tr.env["DOCKER_HOST"] = "unix:///run/d.sock" }, ""},
		"chosen, far":   {func(tr *tree) { tr.env["DOCKER_HOST"] = "ssh://far.example" }, "DOCKER_HOST is ssh://far.example"},
		"chosen, wrong": {func(tr *tree) { tr.env["DOCKER_HOST"] = "unix://d.sock" }, "DOCKER_HOST is unix://d.sock"},
		"no context":    {func(tr *tree) { tr.env["DOCKER_CONTEXT"] = "east" }, `read Docker's context "east"`},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTree(t)
			tr.timeout = 50 * time.Millisecond
			if err := os.MkdirAll(tr.path("/run"), 0o755); err != nil {
				t.Fatal(err)
			}
			tt.open(tr)
			tr.conmon(20, 0, id("ab"), "web", 120)
			begun := time.Now()
			got, err := tr.container(t.Context(), "web")
			if took := time.Since(begun); err != nil || got.Engine != Podman || took > 2*time.Second {
				t.Fatalf("%v, %v after %s", got, err, took)
			}
			if silent := strings.HasPrefix(tt.want, "no answer"); silent != slices.Equal(got.Silent, []string{Docker}) || !silent && len(got.Silent) > 0 {
				t.Errorf("silent: %q", got.Silent)
			}
			_, err = tr.container(t.Context(), "nobody-is-called-so")
			var missing *NotFound
			if !errors.As(err, &missing) {
				t.Fatalf("got %v", err)
			}
			if (tt.want != "") != (len(missing.Unasked) == 1) || !strings.Contains(missing.Hint(), tt.want) {
				t.Errorf("hint %q, want %q", missing.Hint(), tt.want)
			}
		})
	}
}

// What hangs in the file system, as in a dead NFS, is abandoned.
func TestDeadSource(t *testing.T) {
	tr := newTree(t)
	tr.timeout = 20 * time.Millisecond
	hang := make(chan struct{})
	defer close(hang)
	s, err := tr.ask(t.Context(), []asking{{LXC, hanging(hang)}, {Docker, failing{errAbsent}}}, "")
	if err != nil || len(s.unasked) != 1 || s.unasked[0].Engine != LXC || !strings.Contains(s.unasked[0].Error(), "no answer within 100ms") {
		t.Errorf("%+v, %v", s, err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("interrupted")
	cancel(why)
	if _, err := tr.ask(ctx, []asking{{LXC, hanging(hang)}}, ""); !errors.Is(err, why) {
		t.Errorf("cancelled: %v", err)
	}
}

type hanging chan struct{}

func (h hanging) search(context.Context, string) ([]*candidate, error) { <-h; return nil, nil }

// east is the directory of the context "east": printf east | sha256sum
const east = "6bdb262b0201799aefb0ae4116c6fb88f549425e30cd85a7f75a06be246751cf"

// Selected sockets, and those of users.
func TestSockets(t *testing.T) {
	for name, tt := range map[string]struct {
		env    map[string]string
		files  map[string]string
		engine string
		socket string
	}{
		"the usual":        {nil, nil, Docker, "/run/docker.sock"},
		"a user's":         {nil, nil, Docker, "/run/user/1500/docker.sock"},
		"DOCKER_HOST":      {map[string]string{"DOCKER_HOST": "unix:///run/d.sock"}, nil, Docker, "/run/d.sock"},
		"CONTAINER_HOST":   {map[string]string{"CONTAINER_HOST": "unix:///run/p.sock"}, nil, Podman, "/run/p.sock"},
		"DOCKER_CONTEXT":   {map[string]string{"DOCKER_CONTEXT": "east"}, nil, Docker, "/run/e.sock"},
		"a context in use": {nil, map[string]string{"/root/.docker/config.json": `{"currentContext":"east"}`}, Docker, "/run/e.sock"},
		"the default one":  {map[string]string{"DOCKER_CONTEXT": "default"}, nil, Docker, "/run/docker.sock"},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTree(t)
			for k, v := range tt.env {
				tr.env[k] = v
			}
			for path, text := range tt.files {
				tr.write(path, text)
			}
			tr.write("/root/.docker/contexts/meta/"+east+"/meta.json", `{"Name":"east","Endpoints":{"docker":{"Host":"unix:///run/e.sock"}}}`)
			tr.proc(100, proc{comm: "nginx", cgroup: "0::/x-" + id("a") + ".scope\n"})
			tr.serve(tt.socket, daemon{one(id("a"), "web", 100, "bridge")})
			got, err := tr.container(t.Context(), "web")
			if err != nil || got.Engine != tt.engine || got.PID != 100 {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

// Among a monitor's children, hooks and clean-up programs are not the container.
func TestFirst(t *testing.T) {
	for _, tt := range []struct {
		name string
		run  func(*tree)
		want int
	}{
		{"nothing but a clearing-up", func(*tree) {}, 0},
		{"a container", func(tr *tree) { tr.proc(60, proc{comm: "x", nspid: "60 1", parent: 20}) }, 60},
		{"the host's PID namespace", func(tr *tree) { tr.proc(60, proc{comm: "x", parent: 20, cgroup: "0::/libpod-" + id("ab") + "\n"}) }, 60},
		{"and no control group", func(tr *tree) {
			tr.proc(60, proc{comm: "x", parent: 20})
			tr.write("/run/pidfile", "60")
		}, 60},
		{"an old pid file", func(tr *tree) { tr.write("/run/pidfile", "1") }, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tr := newTree(t)
			tr.proc(20, proc{comm: "conmon", children: []int{50, 60}, args: []string{"conmon", "-c", id("ab"), "-u", id("ab"),
				"-b", "/s/overlay-containers/" + id("ab") + "/userdata", "-p", "/run/pidfile", "-n", "web"}})
			tr.proc(50, proc{comm: "podman", parent: 20})
			tt.run(tr)
			got, err := tr.container(t.Context(), "web")
			var stopped *NotRunning
			switch {
			case tt.want == 0 && !errors.As(err, &stopped):
				t.Errorf("found %+v, %v", got, err)
			case tt.want != 0 && (err != nil || got.PID != tt.want):
				t.Errorf("found %+v, %v", got, err)
			}
		})
	}
}

// While a monitor ends and the next one of its container starts, they count as one
// container.
func TestMonitorEnds(t *testing.T) {
	for name, pids := range map[string][2]int{"the old one before": {20, 21}, "after": {21, 20}} {
		t.Run(name, func(t *testing.T) {
			tr := newTree(t)
			tr.conmon(pids[0], 0, id("ab"), "web", 120)
			tr.conmon(pids[1], 0, id("ab"), "web", 121)
			tr.gone(120)
			if got, err := tr.container(t.Context(), "web"); err != nil || got.PID != 121 {
				t.Errorf("found %+v, %v", got, err)
			}
			tr.gone(121)
			if got, err := tr.container(t.Context(), "web"); !errors.As(err, new(*NotRunning)) {
				t.Errorf("found %+v, %v", got, err)
			}
		})
	}
}

// An engine that fails for the only container whose id matches does not count as
// ambiguous.
func TestFailingEngine(t *testing.T) {
	tr := newTree(t)
	tr.serve("/run/docker.sock", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/containers/json" {
			daemon{one(id("ab"), "web", 77, "bridge")}.ServeHTTP(w, r)
			return
		}
		w.WriteHeader(http.StatusInternalServerError)
		w.Write([]byte(`{"message":"out of order"}`))
	}))
	var unasked *Unasked
	if got, err := tr.container(t.Context(), "docker:ab"); !errors.As(err, &unasked) || !strings.Contains(err.Error(), "it answers 500 Internal Server Error: out of order") {
		t.Errorf("got %v, %v", got, err)
	}
}

// If an engine could not be asked for lack of permission, the error begins with that cause.
func TestDeniedEngineIsTheCause(t *testing.T) {
	denied := &Unasked{Docker, fmt.Errorf("dial unix /run/docker.sock: connect: %w", fs.ErrPermission)}
	silent := &Unasked{Podman, silent(time.Second)}
	e := &NotFound{Word: "web", name: "web", Unasked: []*Unasked{silent, denied}}
	want := `ask docker for containers: dial unix /run/docker.sock: connect: permission denied; nothing else is called "web"`
	if e.Error() != want {
		t.Errorf("got  %v\nwant %s", e, want)
	}
	if h := e.Hint(); !strings.Contains(h, "not asked: podman") || strings.Contains(h, "not asked: docker") || !strings.Contains(h, needsRoot) {
		t.Errorf("hint %q", h)
	}
	e = &NotFound{Word: "podman:web", engine: Podman, name: "web", Unasked: []*Unasked{denied}}
	if want := `no podman container is called "web"`; e.Error() != want {
		t.Errorf("got %v, want %s", e, want)
	}
}
