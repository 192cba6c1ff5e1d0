package cli

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/internal/program"

	"golang.org/x/sys/unix"
)

// engineGroup is the prefix of the control groups of the containers of testdata/engines,
// one group for each script.
const engineGroup = "cleat-engines-"

// engineStory runs a script of testdata/engines on a host of its own, so its tests can run beside each other. It returns
// the printed lines by topic.
func engineStory(t *testing.T, script string, programs ...string) map[string][]string {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	if os.Geteuid() != 0 {
		t.Skip("engines need root")
	}
	needPrograms(t, append(programs, "unshare", "nsenter", "ip", "tc")...)
	t.Cleanup(func() { removeEngineGroups(t, engineGroup+strings.TrimSuffix(script, ".sh")) })
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "testdata/engines/host.sh", "testdata/engines/"+script)
	cmd.Env = append(os.Environ(), "PATH="+binDir+string(os.PathListSeparator)+program.SearchPath())
	cmd.WaitDelay = time.Second // processes that stay keep the output open
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
	told := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		if about, what, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			told[about] = append(told[about], what)
		}
	}
	return told
}

// removeEngineGroups removes empty control groups that engines leave behind.
func removeEngineGroups(t *testing.T, group string) {
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		var left []string
		filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil || !d.IsDir():
			case d.Name() == "lxc.pivot":
				unix.Rmdir(path) // the machine's own LXC may use it
			case strings.Contains(path+"/", "/"+group+"/"):
				left = append(left, path)
			}
			return nil
		})
		if len(left) == 0 {
			return
		}
		for _, path := range slices.Backward(left) { // innermost first
			unix.Rmdir(path) // one that still has processes is removed next time
		}
		if time.Now().After(deadline) {
			t.Fatalf("control groups are left: %q", left)
		}
	}
}

// tells checks that the lines were printed in this order; "…" matches anything.
func tells(t *testing.T, told map[string][]string, about string, want ...string) {
	t.Helper()
	got := slices.Clone(told[about])
	for _, w := range want {
		i := slices.IndexFunc(got, func(line string) bool { return matches(strings.Join(strings.Fields(line), " "), w) })
		if i < 0 {
			t.Errorf("%s: %q is missing in: %q", about, w, told[about])
			return
		}
		got = got[i+1:]
	}
}

// matches reports whether a line matches a pattern in which "…" matches anything.
func matches(line, want string) bool {
	parts := strings.Split(want, "…")
	rest, ok := strings.CutPrefix(line, parts[0])
	for _, part := range parts[1:] {
		i := strings.Index(rest, part)
		if i < 0 {
			return false
		}
		rest = rest[i+len(part):]
	}
	return ok && (rest == "" || parts[len(parts)-1] == "" && len(parts) > 1)
}

// TestEngines attaches to a container of each installed engine. The links work, are
// listed, and leave nothing. An attach whose container ends halfway is rolled back; a
// container that ends later is cleaned up; a kept attachment returns with its container.
func TestEngines(t *testing.T) {
	t.Parallel()
	for _, e := range []struct {
		name     string
		programs []string
		shown    string // name of the container in tables
		tells    bool   // the engine, or its files, report that a container starts
		idle     []string
	}{
		{"docker", []string{"dockerd", "docker", "tar"}, "shop", true,
			[]string{`cleat: error: docker container "shop" is not running: exited`, "cleat: hint: start it: docker start shop", "exit 1"}},
		{"podman", []string{"podman", "conmon"}, "shop", true,
			[]string{`cleat: error: podman container "shop" is not running: stopped`, "cleat: hint: start it: podman start shop", "exit 1"}},
		{"lxc", []string{"lxc-start", "lxc-stop", "lxc-info"}, "shop", false,
			[]string{`cleat: error: lxc container "shop" is not running: stopped`, "cleat: hint: start it: lxc-start shop", "exit 1"}},
		{"containerd", []string{"containerd", "ctr", "runc"}, "containerd:" + engineGroup + "containerd/shop", true,
			[]string{`cleat: error: containerd container "shop" in namespace "` + engineGroup + `containerd" is not running: it has no task`,
				"cleat: hint: start it: ctr --namespace " + engineGroup + "containerd tasks start --detach shop", "exit 1"}},
	} {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			told := engineStory(t, e.name+".sh", e.programs...)
			tells(t, told, "bridge", e.shown+" has eth0: bridge on br0, 192.0.2.10/24, 2001:db8::10/64", "exit 0")
			tells(t, told, "macvlan", e.shown+" has lan0: macvlan on nic, 198.51.100.7/24", "exit 0")
			tells(t, told, "ls", e.shown+" eth0 bridge br0 192.0.2.10/24,2001:db8::10/64 attached", e.shown+" lan0 macvlan nic 198.51.100.7/24 attached", "exit 0")
			tells(t, told, "inspect", "container "+e.shown, "link lan0", "state attached", "exit 0")
			for _, way := range []string{"host to container", "host to container, IPv6", "outside to container"} {
				tells(t, told, way, "reached")
			}
			tells(t, told, "graph", "shop "+e.name+" container · cleat", "├─ eth0 veth ── host/veth… (br0) 192.0.2.10/24", "└─ lan0 macvlan, bridge on host/nic 198.51.100.7/24", "exit 0")
			tells(t, told, "detach", "exit 0", "exit 0")
			tells(t, told, "detached", "everything as before")
			tells(t, told, "ended in the middle", "cleat: error: nothing was changed: …the container is gone", "exit 1", "everything as before")
			tells(t, told, "not there", e.idle...)
			tells(t, told, "again", e.shown+" has eth0: bridge on br0, 192.0.2.10/24", "exit 0")
			tells(t, told, "gone", e.shown+" eth0 bridge br0 192.0.2.10/24 gone", "exit 0")
			tells(t, told, "tidied", "exit 0", "everything as before")
			tells(t, told, "keep", e.shown+" has eth0: bridge on br0, 192.0.2.10/24", "exit 0")
			tells(t, told, "at once", "soon, …")
			late := "…after …"
			if e.tells {
				late = "soon, …"
			}
			tells(t, told, "late", late)
			tells(t, told, "kept", e.shown+" eth0 attached attached again: the container had restarted…", "exit 0")
			tells(t, told, "keep no more", "exit 0")
			tells(t, told, "kept no more", "everything as before")
			if len(told["difference"]) > 0 {
				t.Errorf("something stays: %q", told["difference"])
			}
		})
	}
}

// TestTwins has containers of two engines with the same name.
func TestTwins(t *testing.T) {
	t.Parallel()
	told := engineStory(t, "twins.sh", "podman", "conmon", "lxc-start", "lxc-stop")
	tells(t, told, "both", `cleat: error: "shop" is ambiguous: podman container "shop", lxc container "shop"`, "cleat: hint: give one of: podman:shop, lxc:shop", "exit 2")
	tells(t, told, "podman", "shop has eth0: bridge on br0, 192.0.2.10/24", "exit 0")
	tells(t, told, "lxc", "shop has eth0: bridge on br0, 192.0.2.11/24", "exit 0")
	tells(t, told, "graph", `cleat: error: "shop" is the name of 2 network namespaces`, "cleat: hint: give one of: lxc:shop, podman:shop", "exit 2")
	tells(t, told, "graph of one", "lxc:shop lxc container · cleat", "exit 0")
	tells(t, told, "ls", "lxc:shop eth0 bridge br0 192.0.2.11/24 attached", "podman:shop eth0 bridge br0 192.0.2.10/24 attached", "exit 0")
	tells(t, told, "host to podman", "reached")
	tells(t, told, "host to lxc", "reached")
	tells(t, told, "detach both", `cleat: error: "shop" matches several containers`, "cleat: hint: give one of: lxc:shop, podman:shop", "exit 2")
	tells(t, told, "inspect both", `cleat: error: inspect: "shop" matches several containers`, "exit 2")
	tells(t, told, "inspect", "container shop", "addresses 192.0.2.11/24", "exit 0")
	tells(t, told, "detach", "exit 0", "exit 0")
	tells(t, told, "detached", "everything as before")
}

// TestCNI has containerd connect containers by cleat-cni, as doc/plugins.md says. It is killed, and
// forgets to disconnect them.
func TestCNI(t *testing.T) {
	t.Parallel()
	told := engineStory(t, "cni.sh", "containerd", "ctr", "runc")
	const group = engineGroup + "cni"
	tells(t, told, "page", "network web driver bridge 10.20.0.0/24")
	tells(t, told, "connected", "containerd:"+group+"/front containerd eth0 10.20.0.3 front - attached", "containerd:"+group+"/web containerd eth0 10.20.0.2 web - attached", "exit 0")
	tells(t, told, "plain", "plain is on web: eth0 10.20.0.4, name plain", "exit 0")
	tells(t, told, "namespace to container", "reached")
	tells(t, told, "namespace to container, denied", "not reached")
	tells(t, told, "without containerd", "reached")
	tells(t, told, "forgotten", "plain netns eth0 10.20.0.4 plain - attached", "exit 0")
	if slices.ContainsFunc(told["forgotten"], func(line string) bool { return strings.Contains(line, group) }) {
		t.Errorf("containers stay connected: %q", told["forgotten"])
	}
	tells(t, told, "gone", "exit 0", "exit 0")
	tells(t, told, "left", "0 devices")
}

// TestPluginIsSmall: runtimes start the CNI plug-in for each call, so it must start fast.
func TestPluginIsSmall(t *testing.T) {
	info, err := os.Stat(filepath.Join(binDir, "cleat-cni"))
	if err != nil {
		t.Fatal(err)
	}
	if most := int64(5 << 20); info.Size() > most {
		t.Errorf("cleat-cni has %d bytes, want at most %d", info.Size(), most)
	}
}

// TestNetavark has Podman start cleat in the place of netavark.
func TestNetavark(t *testing.T) {
	t.Parallel()
	told := engineStory(t, "netavark.sh", "podman", "conmon", "nft")
	tells(t, told, "run", "api", "front", "alone")
	tells(t, told, "ls", "api podman eth0 10.89.7.2 api,…,db - attached")
	tells(t, told, "ls", "front podman eth0 10.89.7.3 front,… 8080:5210 attached")
	tells(t, told, "name", "exit 0")
	tells(t, told, "resolv.conf", "search dns.podman", "nameserver 10.89.7.1")
	for about, want := range map[string]string{
		"to another container": "reached", "to another network": "not reached", "published, from the host": "reached", "published, from outside": "reached",
		"from a namespace": "reached", "from a namespace that is denied": "not reached",
		"connect": "1", "published, on the other network": "reached", "reload": "1", "left": "everything as before",
	} {
		tells(t, told, about, want)
	}
}

// TestRootlessPodman has an ordinary user's Podman start cleat in the places of netavark and slirp4netns.
func TestRootlessPodman(t *testing.T) {
	t.Parallel()
	told := engineStory(t, "rootless.sh", "podman", "conmon", "newuidmap", "crun", "setpriv")
	tells(t, told, "run", "api", "front", "alone")
	tells(t, told, "ls", "NETWORK …", "podman bridge 10.88.0.0/16 1 up", "shop bridge 10.89.7.0/24 2 up")
	for about, want := range map[string]string{
		"to another container, by name": "reached", "to another network": "not reached", "published, from the host": "reached",
		"published, from outside": "reached", "to outside": "reached", "connected": "reached",
	} {
		tells(t, told, about, want)
	}
	for _, left := range []string{"processes left", "files left"} {
		if len(told[left]) > 0 {
			t.Errorf("%s: %q", left, told[left])
		}
	}
}

// TestEnginePages types what the pages about engines have in their blocks.
func TestEnginePages(t *testing.T) {
	t.Parallel()
	told := engineStory(t, "enginepages.sh", "dockerd", "docker", "podman", "conmon", "containerd", "ctr", "runc")
	for about, want := range map[string][]string{
		"docker.md":           {"typed cleat keep --install", "CONTAINER …", "api docker eth0 … 8080:80 attached", "front podman …"},
		"docker.md published": {"reached"},
		"plugins.md":          {"typed cleat net cni-conf …", "typed 10-cleat.conflist"},
		"containerd on web":   {"1"},
		"containerd on cleat": {"1"},
		"dropin.md":           {"typed cleat.conf …", "CONTAINER …", "api podman eth0 …"},
	} {
		tells(t, told, about, want...)
	}
	if compose := told["compose"]; !slices.Equal(compose, []string{"skipped"}) {
		tells(t, told, "compose", "compose…db…1")
	}
	for about, lines := range told {
		if strings.HasSuffix(about, " failed") {
			t.Errorf("%s: %q", about, lines)
		}
	}
}

// TestTogether has containers of Docker, Podman and containerd and a plain namespace on one network. Each
// reaches each by its name, rules hold for all of them, and each engine removes its own.
func TestTogether(t *testing.T) {
	t.Parallel()
	told := engineStory(t, "together.sh", "dockerd", "docker", "podman", "conmon", "containerd", "ctr", "runc")
	const c1 = "containerd:" + engineGroup + "together/c1"
	tells(t, told, "all", c1+" containerd eth0 10.20.0.… c1 - attached", "d1 docker eth0 10.20.0.… d1,… - attached",
		"p1 podman eth0 10.20.0.… p1,… - attached", "n1 netns eth0 10.20.0.… n1 - attached", "exit 0")
	ends := []string{"d1", "p1", "c1", "n1"}
	for _, from := range ends {
		for _, to := range ends {
			if from == to {
				continue
			}
			tells(t, told, "before", from+" "+to)
			if from == "n1" || from == "d1" && to == "p1" {
				tells(t, told, "denied", from+" not "+to)
			} else {
				tells(t, told, "denied", from+" "+to)
			}
		}
	}
	tells(t, told, "why", `d1 does not reach p1:5210: the rule "deny web/d1 to web/p1" denies it`, "exit 1", c1+" reaches p1:5210 at 10.20.0.…", "exit 0")
	tells(t, told, "graph", "network web bridge cl-web, 10.20.0.0/24", "├─ containerd:cleat-engines-t… eth0 10.20.0.…", "├─ d1 eth0 10.20.0.…", "├─ n1 eth0 10.20.0.…", "├─ p1 eth0 10.20.0.…")
	for about, gone := range map[string]string{"without docker": "d1 ", "without podman": "p1 ", "without all": c1} {
		tells(t, told, about, "CONTAINER …", "exit 0")
		if slices.ContainsFunc(told[about], func(line string) bool { return strings.HasPrefix(line, gone) }) {
			t.Errorf("%s: %q", about, told[about])
		}
	}
	tells(t, told, "rm", "exit 0")
	tells(t, told, "left", "0 devices, 0 namespaces, 0 files")
}
