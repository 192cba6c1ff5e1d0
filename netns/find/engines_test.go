package find

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cleat/lab"
	"cleat/netns"

	"golang.org/x/sys/unix"
)

// host is where real engines run: the lab, with its own /run, /etc, /opt and /var, so
// that they find and leave nothing of the machine.
type host struct {
	dir    string // short, and not on an overlay
	rootfs string // has /stay, and mount points that engines need
}

// group is the control group above all containers.
const group = "cleat-find-test"

var prepare = sync.OnceValues(func() (*host, error) {
	const dir = "/dev/shm" // Podman has a file there
	h := &host{dir, filepath.Join(dir, "rootfs")}
	var err error
	mount := func(source, target, kind string, flags uintptr, data string) {
		if err == nil {
			err = unix.Mount(source, target, kind, flags, data)
		}
	}
	mkdir := func(path string) {
		if err == nil {
			err = os.MkdirAll(path, 0o755)
		}
	}
	mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	mount("tmpfs", dir, "tmpfs", 0, "mode=755")
	mount("tmpfs", "/run", "tmpfs", 0, "mode=755")
	for _, d := range []string{"etc", "opt", "var"} {
		upper, work := filepath.Join(dir, d, "upper"), filepath.Join(dir, d, "work")
		mkdir(upper)
		mkdir(work)
		mount("overlay", "/"+d, "overlay", 0, "lowerdir=/"+d+",upperdir="+upper+",workdir="+work)
	}
	mkdir("/var/lib/containers")
	mount("tmpfs", "/var/lib/containers", "tmpfs", 0, "mode=700") // Podman rejects a database made with other options
	if _, there := os.Stat("/sys/fs/cgroup/unified"); there == nil {
		mount("tmpfs", "/sys/fs/cgroup/unified", "tmpfs", 0, "") // crun wants one version of them
	}
	for _, d := range []string{"dev", "etc", "proc", "run", "sys", "tmp"} {
		mkdir(filepath.Join(h.rootfs, d))
	}
	if err != nil {
		return nil, err
	}
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", filepath.Join(h.rootfs, "stay"), "./testdata/stay")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return h, nil
})

// realHost skips without root or without a program.
func realHost(t *testing.T, programs ...string) *host {
	t.Helper()
	lab.Need(t)
	if flavour, _ := lab.Inside(); flavour != lab.Root {
		t.Skip("engines need root")
	}
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("no program %s", p)
		}
	}
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		for _, prefix := range []string{"DOCKER_", "CONTAINER", "XDG_", "PODMAN_", "STORAGE_", "LXC_"} {
			if strings.HasPrefix(name, prefix) {
				t.Setenv(name, "")
				os.Unsetenv(name)
			}
		}
	}
	h, err := prepare()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeGroups(t) })
	return h
}

// removeGroups removes empty control groups left by engines.
func removeGroups(t *testing.T) {
	ours := func(path string) bool { return strings.Contains(path, "/"+group) }
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		var left []string
		filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil || !d.IsDir():
			case path == "/sys/fs/cgroup/unified":
				return fs.SkipDir // hidden
			case d.Name() == "lxc.pivot":
				unix.Rmdir(path) // the machine's own LXC may have it in use
			case ours(path):
				left = append([]string{path}, left...) // the innermost first
			}
			return nil
		})
		if len(left) == 0 {
			return
		}
		for _, path := range left {
			unix.Rmdir(path) // groups with processes are removed the next time
		}
		if time.Now().After(deadline) {
			t.Errorf("control groups are left: %q", left)
			return
		}
	}
}

// run runs a command of an engine to its end.
func run(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.WaitDelay = time.Second // background processes keep the output open
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		t.Fatalf("%q: %v: %s", args, err, complaint.String())
	}
	return strings.TrimSpace(string(out))
}

// daemon starts a daemon, waits until it answers, and ends it with the test.
func (h *host) daemon(t *testing.T, ready []string, args ...string) {
	t.Helper()
	log, err := os.Create(filepath.Join(h.dir, args[0]+".log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Signal(syscall.SIGTERM); cmd.Wait() })
	for deadline := time.Now().Add(30 * time.Second); exec.Command(ready[0], ready[1:]...).Run() != nil; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			output, _ := os.ReadFile(log.Name())
			t.Fatalf("%s does not answer: %s", args[0], output)
		}
	}
}

// finds searches for a container as a user would, and opens its network.
func finds(t *testing.T, word string, want Found) *Found {
	t.Helper()
	got, err := Container(t.Context(), word, nil)
	if err != nil {
		t.Errorf("%s: %v", word, err)
		return nil
	}
	if got.Engine != want.Engine || got.Name != want.Name || got.Space != want.Space || got.Owner != want.Owner ||
		got.Host != want.Host || fmt.Sprint(got.SharesWith) != fmt.Sprint(want.SharesWith) {
		t.Errorf("%s: %+v, want %+v", word, *got, want)
	}
	exe := func() string { // while it starts, its first process is runc
		path, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", got.PID))
		return path
	}
	for deadline := time.Now().Add(5 * time.Second); !strings.HasSuffix(exe(), "/stay"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("%s: process %d is %s", word, got.PID, exe())
			break
		}
	}
	ns, err := got.NS()
	if err != nil {
		t.Errorf("%s: %v", word, err)
		return nil
	}
	defer ns.Close()
	own, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	inode, _ := ns.ID()
	if ours, _ := own.ID(); inode == 0 || inode != got.Net || (inode == ours) != want.Host {
		t.Errorf("%s: network namespace %d, found %d, ours %d", word, inode, got.Net, ours)
	}
	return got
}

// idle searches for a container that is not running.
func idle(t *testing.T, word, remedy string) {
	t.Helper()
	var stopped *NotRunning
	if got, err := Container(t.Context(), word, nil); !errors.As(err, &stopped) || stopped.Hint() != "start it: "+remedy {
		t.Errorf("%s: %+v, %v", word, got, err)
	}
}

// listed reports whether All lists it.
func lists(t *testing.T, refs ...string) {
	t.Helper()
	all, unasked, err := All(t.Context())
	if err != nil || len(unasked) > 0 {
		t.Errorf("all: %v, %v", unasked, err)
	}
	var got []string
	for _, f := range all {
		got = append(got, f.Ref())
	}
	if fmt.Sprint(got) != fmt.Sprint(refs) {
		t.Errorf("all are %q, want %q", got, refs)
	}
}

func TestDocker(t *testing.T) {
	h := realHost(t, "dockerd", "docker", "tar")
	config := filepath.Join(h.dir, "daemon.json")
	if err := os.WriteFile(config, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	docker := []string{"docker", "--config", h.dir}
	h.daemon(t, append(docker, "version"), "dockerd", "--config-file", config, "--pidfile", filepath.Join(h.dir, "dockerd.pid"),
		"--host", "unix:///run/docker.sock", "--data-root", filepath.Join(h.dir, "docker"), "--exec-root", "/run/docker",
		"--bridge", "none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false",
		"--exec-opt", "native.cgroupdriver=cgroupfs", "--cgroup-parent", "/"+group)
	do := func(args ...string) string { return run(t, append(docker, args...)...) }
	archive := filepath.Join(h.dir, "image.tar")
	run(t, "tar", "-C", h.rootfs, "-cf", archive, ".")
	do("import", archive, "stay")
	t.Cleanup(func() { do("rm", "--force", "web", "side", "agent", "idle") })
	whole := do("run", "--detach", "--name", "web", "--network", "none", "stay", "/stay")
	do("run", "--detach", "--name", "side", "--network", "container:web", "stay", "/stay")
	do("run", "--detach", "--name", "agent", "--network", "host", "stay", "/stay")
	do("create", "--name", "idle", "--network", "none", "stay", "/stay")

	web := Found{Engine: Docker, Name: "web"}
	for _, word := range []string{"web", "docker:web", whole, whole[:12], "docker:" + whole[:6]} {
		finds(t, word, web)
	}
	finds(t, "side", Found{Engine: Docker, Name: "side", SharesWith: []string{"docker:web"}})
	finds(t, "agent", Found{Engine: Docker, Name: "agent", Host: true})
	idle(t, "idle", "docker start idle")
	lists(t, "docker:agent", "docker:side", "docker:web")
	do("rename", "web", "front")
	finds(t, "front", Found{Engine: Docker, Name: "front"})
	do("rename", "front", "web")
	do("pause", "web")
	before := finds(t, "web", web)
	do("unpause", "web")
	do("restart", "--time", "0", "web")
	if _, err := before.NS(); !errors.Is(err, ErrGone) {
		t.Errorf("after a restart: %v", err)
	}
	if after := finds(t, before.Ref(), web); after != nil && after.PID == before.PID && after.Start == before.Start {
		t.Error("the process is the same after a restart")
	}
}

func TestPodman(t *testing.T) {
	h := realHost(t, "podman", "conmon")
	podman := []string{"podman", "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--events-backend", "none", "--log-level", "error"}
	do := func(args ...string) string { return run(t, append(podman, args...)...) }
	made := func(verb []string, name, network string) {
		do(append(verb, "--name", name, "--network", network, "--cgroup-parent", "/"+group, "--rootfs", h.rootfs, "/stay")...)
	}
	t.Cleanup(func() {
		do("rm", "--force", "--time", "0", "side", "agent", "idle")
		do("rm", "--force", "--time", "0", "front")
	})
	start := []string{"run", "--detach"}
	made(start, "web", "none")
	made(start, "side", "container:web")
	made(start, "agent", "host")
	made([]string{"create"}, "idle", "none")
	do("rename", "web", "front")
	front := Found{Engine: Podman, Name: "front", SharesWith: []string{"podman:side"}}
	whole := do("inspect", "--format", "{{.ID}}", "front")
	for _, word := range []string{"front", "podman:front", whole, whole[:12]} {
		finds(t, word, front)
	}
	finds(t, "side", Found{Engine: Podman, Name: "side", SharesWith: []string{"podman:front"}})
	finds(t, "agent", Found{Engine: Podman, Name: "agent", Host: true})
	idle(t, "idle", "podman start idle")
	// A further process in it has its own monitor.
	do("exec", "--detach", "front", "/stay")
	lists(t, "podman:agent", "podman:front", "podman:side")
	do("stop", "--time", "0", "side")
	idle(t, "side", "podman start side")

	// The same through its service.
	socket := "/run/podman.sock"
	service := append(podman, "system", "service", "--time", "0", "unix://"+socket)
	h.daemon(t, []string{"podman", "--url", "unix://" + socket, "version"}, service...)
	t.Setenv("CONTAINER_HOST", "unix://"+socket)
	finds(t, "front", Found{Engine: Podman, Name: "front"})
	finds(t, "podman:"+whole[:6], Found{Engine: Podman, Name: "front"})
	finds(t, "agent", Found{Engine: Podman, Name: "agent", Host: true})
	idle(t, "idle", "podman start idle")
	lists(t, "podman:agent", "podman:front")
}

func TestContainerd(t *testing.T) {
	h := realHost(t, "containerd", "ctr", "runc")
	config := filepath.Join(h.dir, "containerd.toml")
	text := fmt.Sprintf("version = 2\nroot = %q\nstate = \"/run/containerd\"\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n", filepath.Join(h.dir, "containerd"))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	h.daemon(t, []string{"ctr", "version"}, "containerd", "--config", config)
	for _, c := range []struct {
		space, name string
		more        []string
	}{{group, "web", nil}, {group, "tool", []string{"--net-host"}}, {group + "2", "web", nil}} {
		args := append([]string{"ctr", "--namespace", c.space, "run", "--detach", "--label", "nerdctl/name=its-" + c.name, "--rootfs"}, c.more...)
		run(t, append(args, h.rootfs, c.name, "/stay")...)
		t.Cleanup(func() {
			exec.Command("ctr", "--namespace", c.space, "tasks", "delete", "--force", c.name).Run() // one has ended
			run(t, "ctr", "--namespace", c.space, "containers", "delete", c.name)
		})
	}
	finds(t, "tool", Found{Engine: Containerd, Name: "its-tool", Space: group, Host: true})
	finds(t, "its-tool", Found{Engine: Containerd, Name: "its-tool", Space: group, Host: true})
	got := finds(t, "containerd:"+group+"/web", Found{Engine: Containerd, Name: "its-web", Space: group})
	finds(t, "ctr:"+group+"2/web", Found{Engine: Containerd, Name: "its-web", Space: group + "2"})
	var several *Ambiguous
	if _, err := Container(t.Context(), "web", nil); !errors.As(err, &several) || len(several.Candidates) != 2 {
		t.Errorf("web: %v", err)
	}
	lists(t, "containerd:"+group+"/its-tool", "containerd:"+group+"/its-web", "containerd:"+group+"2/its-web")
	if got == nil {
		return
	}
	handle, err := unix.PidfdOpen(got.PID, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(handle)
	if err := unix.Kill(got.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(handle), Events: unix.POLLIN}}, 10_000); n != 1 {
		t.Errorf("it does not end: %v", err)
	}
	idle(t, got.Ref(), "ctr --namespace "+group+" tasks start --detach web\nrunning under that name: containerd:"+group+"2/its-web")
	run(t, "ctr", "--namespace", group, "containers", "create", "--rootfs", h.rootfs, "hammer", "/stay")
	t.Cleanup(func() { run(t, "ctr", "--namespace", group, "containers", "delete", "hammer") })
	idle(t, "hammer", "ctr --namespace "+group+" tasks start --detach hammer")
	idle(t, "ctr:hamm", "ctr --namespace "+group+" tasks start --detach hammer")
}

func TestLXC(t *testing.T) {
	h := realHost(t, "lxc-start", "lxc-stop")
	for _, name := range []string{"web", "fore", "idle"} {
		dir := "/var/lib/lxc/" + name
		config := fmt.Sprintf("lxc.rootfs.path = dir:%s\nlxc.uts.name = %s\nlxc.net.0.type = empty\nlxc.init.cmd = /stay\n"+
			"lxc.autodev = 0\nlxc.mount.auto = proc:mixed\n", h.rootfs, name)
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(dir+"/config", []byte(config), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	stop := func(name string) { run(t, "lxc-stop", "--kill", "--name", name) }
	run(t, "lxc-start", "--name", "web", "--daemon")
	defer stop("web")
	fore := exec.Command("lxc-start", "--name", "fore", "--foreground")
	if err := fore.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { stop("fore"); fore.Wait() }()
	run(t, "lxc-wait", "--name", "fore", "--state", "RUNNING", "--timeout", "20")
	web := Found{Engine: LXC, Name: "web"}
	finds(t, "web", web)
	finds(t, "lxc:fore", Found{Engine: LXC, Name: "fore"})
	idle(t, "idle", "lxc-start idle")
	lists(t, "lxc:fore", "lxc:web")

	// By the control groups alone.
	m := thisMachine(nil)
	all := lxc{scope{m: m}, newMonitors(m)}.addGroups(nil)
	var names []string
	for _, k := range all {
		if got, err := Container(t.Context(), k.Ref(), nil); err != nil || got.PID != k.PID {
			t.Errorf("by its control group: %+v, by its monitor: %+v, %v", k.Found, got, err)
		}
		names = append(names, k.Name)
	}
	slices.Sort(names)
	if fmt.Sprint(names) != "[fore web]" {
		t.Errorf("by control groups: %q", names)
	}
}
