package find

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"cleat/internal/sys/systest"
	"cleat/lab"

	"golang.org/x/sys/unix"
)

// needRoot skips if the owner of files cannot be changed.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	if err := os.Lchown(t.TempDir(), alice, alice); err != nil {
		t.Skip("there is one user only: ", err)
	}
}

// give changes the owner of files to alice.
func (tr *tree) give(paths ...string) {
	tr.t.Helper()
	for _, p := range paths {
		err := filepath.WalkDir(tr.path(p), func(path string, _ os.DirEntry, err error) error {
			return errors.Join(err, os.Lchown(path, alice, alice))
		})
		if err != nil {
			tr.t.Fatal(err)
		}
	}
}

// serveAs serves on a socket as another user: the kernel records who listens.
func (tr *tree) serveAs(uid int, socket string, h http.Handler) {
	tr.t.Helper()
	dir := filepath.Dir(tr.path(socket))
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(tr.root, 0o755), os.Chmod(dir, 0o777)); err != nil {
		tr.t.Fatal(err)
	}
	listened := make(chan error)
	var l net.Listener
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends with these ids
		if err := systest.SetThreadUser(uid); err != nil {
			listened <- err
			return
		}
		var err error
		l, err = net.Listen("unix", tr.path(socket))
		listened <- err
	}()
	if err := <-listened; err != nil {
		tr.t.Fatal(err)
	}
	s := &http.Server{Handler: h}
	go s.Serve(l)
	tr.t.Cleanup(func() { s.Close() })
}

// A user's runtime directory may contain a link to a directory of root that the user can
// write to. Its contents are still the user's claims.
func TestRuntimeDirLinks(t *testing.T) {
	needRoot(t)
	tr := newTree(t)
	victim := id("db")
	tr.proc(100, proc{comm: "nginx", nspid: "100 1", net: ownNet, cgroup: "0::/docker/" + victim})
	tr.write("/run/user/1500/containerd/x", "")
	tr.write("/tmp/x/default/"+victim+"/init.pid", "100")
	tr.write("/tmp/x/default/"+victim+"/config.json", `{"annotations":{"nerdctl/name":"web"}}`)
	if err := os.Symlink(tr.path("/tmp/x"), tr.path("/run/user/1500/containerd/io.containerd.runtime.v2.task")); err != nil {
		t.Fatal(err)
	}
	tr.give("/run/user/1500", "/tmp/x/default")
	for _, word := range []string{"web", "containerd:web", "containerd:alice/default/web", victim} {
		if got, err := tr.container(t.Context(), word); err == nil {
			t.Errorf("%s: a user made root believe in %+v", word, got)
		}
	}
}

// A user's engine may name a process of the user that is in somebody else's network, such
// as one with the user's uid in a container of root.
func TestUsersProcessElsewhere(t *testing.T) {
	needRoot(t)
	tr := newTree(t)
	victim := id("db")
	tr.proc(100, proc{comm: "nginx", uid: alice, nspid: "100 1", net: ownNet, netOwner: 0, cgroup: "0::/docker/" + victim})
	tr.serveAs(alice, "/run/user/1500/docker.sock", daemon{one(victim, "web", 100, "bridge")})
	tr.give("/run/user/1500")
	for _, word := range []string{"docker:alice/web", "web"} {
		if got, err := tr.container(t.Context(), word); err == nil {
			t.Errorf("%s: the container is in a network of root's: %+v", word, got)
		}
	}
}

// A socket in a user's directory may lead to root's engine, which would then be asked
// under two names.
func TestSocketLinks(t *testing.T) {
	needRoot(t)
	tr := newTree(t)
	tr.proc(100, proc{comm: "nginx", nspid: "100 1", net: ownNet, cgroup: "0::/docker/" + id("a")})
	tr.serve("/run/docker.sock", daemon{one(id("a"), "web", 100, "bridge")})
	tr.write("/run/user/1500/bus", "")
	if err := os.Symlink(tr.path("/run/docker.sock"), tr.path("/run/user/1500/docker.sock")); err != nil {
		t.Fatal(err)
	}
	tr.give("/run/user/1500")
	s, err := tr.survey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var refs []string
	for _, k := range s.candidates {
		refs = append(refs, k.Ref())
	}
	if strings.Join(refs, " ") != "docker:web" {
		t.Errorf("known: %q", refs)
	}
}

// A process of a container that shares the host's process ids may call itself a monitor.
// It counts as root's only if it has root's rights.
func TestMonitorsOfContainers(t *testing.T) {
	for name, p := range map[string]proc{
		"without root's rights":       {comm: "conmon", caps: "00000000a80425fb"}, // Docker's default capabilities
		"root of another user's own":  {comm: "conmon", userNS: "user:[4026532999]"},
		"a monitor of LXC's, no root": {comm: "lxc-start", caps: "00000000a80425fb"},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTree(t)
			p.children = []int{120}
			p.args = []string{"conmon", "-c", id("ab"), "-u", id("ab"), "-b", "/s/overlay-containers/" + id("ab") + "/userdata", "-n", "web"}
			if p.comm == "lxc-start" {
				p.args = []string{"[lxc monitor] /var/lib/lxc web"}
			}
			tr.proc(20, p)
			tr.proc(120, proc{comm: "sh", parent: 20, nspid: "120 1", net: ownNet})
			if got, err := tr.container(t.Context(), "web"); err == nil {
				t.Errorf("found %+v", got)
			}
		})
	}
}

// A user's monitor cannot put its container among those of Incus.
func TestUsersIncus(t *testing.T) {
	tr := newTree(t)
	tr.proc(31, proc{comm: "incusd", uid: alice, args: []string{"[lxc monitor] /home/alice/incus/ box"}, children: []int{131}})
	tr.proc(131, proc{comm: "init", uid: alice, netOwner: alice, parent: 31, nspid: "131 1", net: 4026532031})
	if got, err := tr.container(t.Context(), "incus:box"); err == nil {
		t.Errorf("found %+v", got)
	}
}

// A name without a user never means another user's container: not if root has none of
// that name, and not after root's has ended.
func TestNamesOfOthers(t *testing.T) {
	for name, roots := range map[string]func(*tree){
		"none of root's":   func(*tree) {},
		"root's has ended": func(tr *tree) { tr.conmon(20, 0, id("ab"), "web", 120); tr.gone(120) },
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTree(t)
			roots(tr)
			tr.conmon(21, alice, id("ad"), "web", 121)
			for _, word := range []string{"web", "podman:web", id("ad"), id("ad")[:8]} {
				if got, err := tr.container(t.Context(), word); err == nil {
					t.Errorf("%s is %s of user %d", word, got, got.Owner)
				}
			}
			var missing *NotFound
			if _, err := tr.container(t.Context(), "web"); name == "none of root's" && (!errors.As(err, &missing) || !strings.Contains(missing.Hint(), "did you mean podman:alice/web?")) {
				t.Errorf("whose it is is not said: %v", err)
			}
			if got, err := tr.container(t.Context(), "podman:alice/web"); err != nil || got.PID != 121 || got.Owner != alice {
				t.Errorf("podman:alice/web is %v, %v", got, err)
			}
		})
	}
}

// Namespaces of containerd have the same names in root's and in users' engines.
func TestSpacesOfOthers(t *testing.T) {
	needRoot(t)
	tr := newTree(t)
	tr.write("/run/user/1500/containerd"+taskDir+"/default/"+id("a")+"/init.pid", "100")
	tr.write("/run/user/1500/containerd"+taskDir+"/default/"+id("a")+"/config.json", `{"annotations":{"nerdctl/name":"web"}}`)
	tr.proc(100, proc{comm: "nginx", uid: alice, netOwner: alice, nspid: "100 1", net: ownNet, cgroup: "0::/x-" + id("a")})
	tr.give("/run/user/1500")
	if got, err := tr.container(t.Context(), "containerd:default/web"); err == nil {
		t.Errorf("root's namespace: %+v", got)
	}
	got, err := tr.container(t.Context(), "containerd:alice/default/web")
	if err != nil || got.PID != 100 || got.Ref() != "containerd:alice/default/web" {
		t.Errorf("alice's: %+v, %v", got, err)
	}
}

// Overlong names, which no engine makes, are dropped.
func TestLongNames(t *testing.T) {
	tr := newTree(t)
	tr.conmon(20, 0, id("ab"), strings.Repeat("x", 1<<20), 120)
	tr.conmon(22, 0, id("ae"), "web", 122)
	s, err := tr.survey(t.Context())
	if err != nil || len(s.candidates) != 1 || s.candidates[0].Name != "web" {
		t.Errorf("%d known, %v", len(s.candidates), err)
	}
}

// A user's fake container must not remove one of root's from the list.
func TestTidyKeepsRoots(t *testing.T) {
	needRoot(t)
	tr := newTree(t)
	tr.task("k8s.io", id("9a"), 110, `{}`)
	tr.proc(110, proc{comm: "pause", nspid: "110 1", net: 4026532010, cgroup: "0::/kubepods/cri-containerd-" + id("9a") + ".scope\n"})
	tr.serveAs(alice, "/run/user/1500/docker.sock", daemon{one(id("9a"), "x", 0, "bridge")})
	tr.give("/run/user/1500")
	s, err := tr.survey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range s.candidates {
		if k.Engine == Containerd && k.running() {
			return
		}
	}
	t.Errorf("root's container is not listed: %v", s.candidates)
}

// What a user puts in place of a file is not opened unless it is a regular file of the
// user.
func TestUsersFiles(t *testing.T) {
	needRoot(t)
	const store = "/home/alice/.local/share/containers/storage/overlay-containers/containers.json"
	secret, err := json.Marshal([]any{map[string]any{"id": id("a"), "names": []string{"secret"}}})
	if err != nil {
		t.Fatal(err)
	}
	for name, put := range map[string]func(*tree) error{
		"a link to root's": func(tr *tree) error {
			tr.write("/root/secret.json", string(secret))
			return os.Symlink(tr.path("/root/secret.json"), tr.path(store))
		},
		"a directory of root's": func(tr *tree) error {
			tr.write("/root/s/overlay-containers/containers.json", string(secret))
			dir := filepath.Dir(filepath.Dir(tr.path(store)))
			return errors.Join(os.RemoveAll(dir), os.Symlink(tr.path("/root/s"), dir))
		},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTree(t)
			tr.write(filepath.Dir(store)+"/x", "")
			tr.give("/home/alice")
			if err := put(tr); err != nil {
				t.Fatal(err)
			}
			s, err := tr.survey(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, k := range s.candidates {
				t.Errorf("%s was read from a file of root's", k)
			}
		})
	}
}

// A container whose first process moves to another network after it was found is not
// entered there.
func TestNetworkSwapped(t *testing.T) {
	cmd := sleeper(t)
	found := &Found{Engine: Docker, Name: "web", PID: cmd.Process.Pid, proc: "/proc"}
	s, err := readStat("/proc", found.PID)
	if err != nil {
		t.Fatal(err)
	}
	found.Start = s.start
	ns, err := found.NS()
	if err != nil {
		t.Fatal(err)
	}
	here, err := ns.ID()
	if err != nil {
		t.Fatal(err)
	}
	ns.Close()
	found.Net = here + 1 // where it was when it was found
	if ns, err := found.NS(); !errors.Is(err, ErrGone) {
		t.Errorf("opened %v, %v", ns, err)
	}
}

// The kernel knows the owner of a network: the user who created the user namespace around
// it, and only root without one.
func TestOwnersOfNet(t *testing.T) {
	needRoot(t)
	lab.Need(t)
	cmd := exec.Command("setpriv", "--reuid="+strconv.Itoa(alice), "--clear-groups", "unshare", "--user", "--net", "--map-root-user", "sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Skip("setpriv and unshare of util-linux are needed: ", err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	alices := "/proc/" + strconv.Itoa(cmd.Process.Pid)
	for end := time.Now().Add(10 * time.Second); ; {
		comm, err := os.ReadFile(alices + "/comm")
		if err != nil || time.Now().After(end) {
			t.Skipf("no user namespace can be made as another user: %q, %v", comm, err)
		}
		if string(comm) == "sleep\n" {
			break
		}
		runtime.Gosched()
	}
	if uids, err := ownersOfNet(alices + "/ns/net"); err != nil || !slices.Contains(uids, alice) {
		t.Errorf("alice's: %v, %v", uids, err)
	}
	roots := sleeper(t)
	if uids, err := ownersOfNet("/proc/" + strconv.Itoa(roots.Process.Pid) + "/ns/net"); err != nil || !slices.Equal(uids, []int{0}) {
		t.Errorf("root's: %v, %v", uids, err)
	}
	if uids, err := ownersOfNet("/proc/" + strconv.Itoa(roots.Process.Pid) + "/ns/mnt"); err != nil {
		t.Errorf("of another kind: %v, %v", uids, err)
	}
}

// Others' names in hints are quoted: a shell takes each name as one word.
func TestHintsAreQuoted(t *testing.T) {
	const evil = "$(reboot)\n;x"
	tr := newTree(t)
	tr.conmon(21, alice, id("ad"), evil, 121)
	tr.conmon(22, 0, id("ae"), evil, 122)
	tr.conmon(23, 0, id("af"), evil, 123)
	tr.write("/var/lib/containers/storage/overlay-containers/containers.json", `[{"id":"`+id("ac")+`","names":["idle$(reboot)"]}]`)
	tr.task("default", "tool;reboot", 0, `{}`)
	for word, want := range map[string]string{
		evil + "x":                 `did you mean $'podman:$(reboot)\012;x' or `,
		"podman:idle$(reboot)":     "start it: podman start 'idle$(reboot)'",
		"containerd:tool;reboot":   "start it: ctr --namespace default tasks start --detach 'tool;reboot'",
		"nobody is called like it": "$'podman:alice/$(reboot)\\012;x'",
	} {
		_, err := tr.container(t.Context(), word)
		hint := err.(interface{ Hint() string }).Hint()
		if !strings.Contains(hint, want) || strings.Contains(hint, "\n;x") {
			t.Errorf("%q: hint %q, want %q", word, hint, want)
		}
	}
	e := &Ambiguous{Candidates: []*Found{{Engine: LXC, Name: evil}, {Engine: Docker, Name: evil}}}
	if want := `give one of: $'lxc:$(reboot)\012;x', $'docker:$(reboot)\012;x'`; e.Hint() != want {
		t.Errorf("%s, want %s", e.Hint(), want)
	}
}
