package find

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"cleat/lab"
	"cleat/netns"

	"golang.org/x/sys/unix"
)

// A user's engine may name the user's processes and no others.
func TestUsersEngines(t *testing.T) {
	for _, tt := range []struct {
		name  string
		proc  proc
		found bool
	}{
		{"his own", proc{uid: alice, netOwner: alice, net: ownNet, cgroup: "0::/user.slice/docker-" + id("a") + ".scope"}, true},
		{"another's", proc{uid: 0, net: ownNet, cgroup: "0::/docker/" + id("a")}, false},
		{"his own, another container's", proc{uid: alice, netOwner: alice, net: ownNet, cgroup: "0::/docker/" + id("b")}, false},
		{"his own, by its parent", proc{uid: alice, netOwner: alice, net: ownNet, parent: 50}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			needRoot(t)
			tr := newTree(t)
			tr.proc(50, proc{comm: "containerd-shim", uid: alice, args: []string{"containerd-shim-runc-v2", "-id", id("a")}})
			tr.proc(100, tt.proc)
			tr.serveAs(alice, "/run/user/1500/docker.sock", daemon{one(id("a"), "web", 100, "bridge")})
			tr.task("default", id("a"), 100, "{}")
			if err := os.Rename(tr.path("/run/containerd"), tr.path("/run/user/1500/containerd")); err != nil {
				t.Fatal(err)
			}
			tr.give("/run/user/1500")
			got, err := tr.container(t.Context(), "docker:alice/web")
			if (err == nil) != tt.found || err == nil && got.Owner != alice {
				t.Errorf("docker: %+v, %v", got, err)
			}
			got, err = tr.container(t.Context(), "containerd:alice/default/"+id("a"))
			if (err == nil) != tt.found || err == nil && got.Owner != alice {
				t.Errorf("containerd: %+v, %v", got, err)
			}
		})
	}
}

// A file that a user may have put in place of another.
func TestReadFile(t *testing.T) {
	tr := newTree(t)
	if err := unix.Mkfifo(tr.path("/pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	tr.write("/there", "text")
	if err := os.Symlink("/dev/zero", tr.path("/endless")); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, path := range []string{"/pipe", "/endless", "/etc"} {
			if text, err := tr.readFile(path, 0); err == nil {
				t.Errorf("%s: %d bytes", path, len(text))
			}
		}
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("it waits")
	}
	if text, err := tr.readFile("/there", 0); string(text) != "text" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
}

func TestReadStat(t *testing.T) {
	tr := newTree(t)
	tr.proc(7, proc{comm: "a) S 1 (b", parent: 3, state: "Z"})
	want := stat{comm: "a) S 1 (b", state: 'Z', parent: 3, start: startOf(7)}
	if got, err := readStat(tr.procDir(), 7); got != want || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	for name, text := range map[string]string{
		"empty": "", "no name": "7 S 1", "short": "7 (x) S 1 2 3", "no number": "7 (x) S x 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 9 0",
	} {
		tr.write("/proc/8/stat", text)
		if got, err := readStat(tr.procDir(), 8); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
	own, err := readStat("/proc", os.Getpid())
	if err != nil || own.parent != os.Getppid() || own.start == 0 || own.dead() {
		t.Errorf("own: %+v, %v", own, err)
	}
}

// Without CONFIG_PROC_CHILDREN, all processes are scanned.
func TestNoListOfChildren(t *testing.T) {
	tr := everything(t)
	for _, list := range tr.glob("/proc/*/task/*/children") {
		if err := os.Remove(list); err != nil {
			t.Fatal(err)
		}
	}
	for word, pid := range map[string]int{"podman:front": 120, "incus:box": 131, "apptainer:alice/sim": 140} {
		if got, err := tr.container(t.Context(), word); err != nil || got.PID != pid {
			t.Errorf("%s: %+v, %v", word, got, err)
		}
	}
}

// sleeper is a process in its own network namespace, in the lab.
func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	lab.Need(t)
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd
}

func TestNS(t *testing.T) {
	cmd := sleeper(t)
	pid := strconv.Itoa(cmd.Process.Pid)
	got, err := Container(t.Context(), pid, nil)
	if err != nil {
		t.Fatal(err)
	}
	ns, err := got.NS()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if inode, err := ns.ID(); err != nil || inode != got.Net || got.Host || got.Owner != os.Getuid() {
		t.Errorf("it is in %d, %v; found %+v", inode, err, got)
	}
	handle, err := unix.PidfdOpen(got.PID, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(handle)
	ended := func(timeout int) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(handle), Events: unix.POLLIN}}, timeout)
		return n == 1 && err == nil
	}
	if ended(0) {
		t.Error("it has ended, says the handle")
	}
	recycled := *got
	recycled.Start++ // as if another process had its number now
	for what, f := range map[string]*Found{"recycled": &recycled, "ended": got} {
		if what == "ended" {
			cmd.Process.Kill()
			if !ended(10_000) {
				t.Error("the handle does not say that it has ended")
			}
		}
		if ns, err := f.NS(); !errors.Is(err, ErrGone) {
			t.Errorf("%s: %v, %v", what, ns, err)
		}
	}
	var missing *NotFound
	if got, err := Container(t.Context(), pid, nil); !errors.As(err, &missing) {
		t.Errorf("a zombie is found: %+v, %v", got, err)
	}
	if got, err := Container(t.Context(), strconv.Itoa(os.Getpid()), nil); err != nil || !got.Host {
		t.Errorf("ourselves: %+v, %v", got, err)
	}
}

// Named namespaces, live and stale. The name of a container's namespace is listed as the
// container only.
func TestNamed(t *testing.T) {
	cmd := sleeper(t)
	tr := everything(t)
	tr.write(namedDir+"/stale", "")
	of, err := netns.OfPID(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer of.Close()
	inode, err := of.ID()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"blue", "cni-1", "fore"} {
		pin := tr.path(namedDir + "/" + name)
		if err := of.Pin(pin); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { netns.Unpin(pin) })
	}
	for _, word := range []string{"blue", "netns:blue", tr.path(namedDir + "/blue")} {
		got, err := tr.container(t.Context(), word)
		if err != nil || got.Net != inode || got.PID != 0 {
			t.Errorf("%s: %+v, %v", word, got, err)
			continue
		}
		ns, err := got.NS()
		if err != nil {
			t.Error(err)
			continue
		}
		if at, err := ns.ID(); at != inode || err != nil {
			t.Errorf("%s is %d, %v", word, at, err)
		}
		ns.Close()
	}
	var stale *NotRunning
	if got, err := tr.container(t.Context(), "stale"); !errors.As(err, &stale) {
		t.Errorf("stale: %+v, %v", got, err)
	}
	var several *Ambiguous
	if got, err := tr.container(t.Context(), "fore"); !errors.As(err, &several) {
		t.Errorf("a name of two: %+v, %v", got, err)
	}
	// Now containers use them.
	for _, pid := range []string{"132", "140"} {
		link := tr.path("/proc/" + pid + "/ns/net")
		if err := errors.Join(os.Remove(link), os.Symlink("net:["+strconv.FormatUint(inode, 10)+"]", link)); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := tr.container(t.Context(), "fore"); err != nil || got.Engine != LXC {
		t.Errorf("a container and the name of its namespace: %+v, %v", got, err)
	}
	if got, err := tr.container(t.Context(), "cni-1"); err != nil || got.Engine != Named || !strings.Contains(strings.Join(got.SharesWith, " "), "lxc:fore") {
		t.Errorf("the name of a container's namespace: %+v, %v", got, err)
	}
	s, err := tr.survey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range s.candidates {
		if k.Engine == Named && k.running() {
			t.Errorf("%s is listed", k.Ref())
		}
	}
}
