package engines

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// programs is the directory of the programs that stories run: cleat and whoami.
var programs string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "cleat-engines-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	programs = dir
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// build builds a program into programs, once.
func build(t *testing.T, name, pkg string) {
	t.Helper()
	out := filepath.Join(programs, name)
	if _, err := os.Stat(out); err == nil {
		return
	}
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, b)
	}
}

// story runs a script from testdata in the tree. It returns the script's output: lists of
// lines by their first word.
func story(t *testing.T, script string, args ...string) map[string][]string {
	t.Helper()
	tree := os.Getenv("CLEAT_SID")
	if tree == "" {
		t.Skip("CLEAT_SID names no tree of a newer Debian with container engines: see the package comment")
	}
	if _, err := os.Stat(filepath.Join(tree, "usr/bin/podman")); err != nil {
		t.Skipf("there is no Podman in the tree: make it with compat/engines/testdata/tree.sh %s", tree)
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can enter a tree of a newer Debian")
	}
	build(t, "cleat", "cleat/cmd/cleat")
	build(t, "whoami", "./testdata/whoami")
	build(t, "found", "./testdata/found")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "testdata/enter.sh", append([]string{tree, programs, filepath.Join("testdata", script)}, args...)...)
	var out, diag bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diag
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s%s", err, &out, &diag)
	}
	t.Logf("%s%s", &out, &diag)
	output := map[string][]string{}
	for line := range strings.Lines(out.String()) {
		about, what, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if ok {
			output[about] = append(output[about], what)
		}
	}
	return output
}

// check compares the output, line by line, with what is expected.
func check(t *testing.T, told map[string][]string, want map[string]string) {
	t.Helper()
	for about, what := range want {
		if got := strings.Join(told[about], "\n"); got != what {
			t.Errorf("%s: %q, want %q", about, got, what)
		}
	}
}

// oldNetwork is Podman's network before pasta, in which slirp4netns forwards the ports.
const oldNetwork = "slirp4netns:port_handler=slirp4netns"

func TestPodman(t *testing.T) {
	refused := "wget: can't connect to remote host (192.0.2.1): Connection refused"
	common := map[string]string{
		"run": "0", "rm": "0", "helpers": "1", "helpers afterwards": "0",
		"out": "hello from outside", "name": "1", "ping": "1", "host": "hello from the host",
		"host's loopback by the gateway":    refused,
		"in at loopback only, from outside": "refused",
	}
	rows := []struct {
		name string
		args []string
		want map[string]string
	}{
		{"default network", nil, map[string]string{
			"in from outside": "from 192.0.2.20", "in by UDP from outside": "from 192.0.2.20",
			"in from the host": "from 169.254.1.2", "in from loopback": "from 192.0.2.1", "in at loopback only": "from 192.0.2.1",
		}},
		{"pasta with its own addresses", []string{"--network", "pasta:-a,10.0.5.100,-n,24,-g,10.0.5.2,-I,net0,-m,1500"}, map[string]string{
			"in from outside": "from 192.0.2.20", "in by UDP from outside": "from 192.0.2.20",
			"in from loopback": "from 10.0.5.2",
			"route":            "default via 10.0.5.2 dev net0\n10.0.5.0/24 dev net0 scope link  src 10.0.5.100",
			"host":             "wget: download timed out", // as with pasta: the host has no service at 10.0.5.100
		}},
		{"slirp4netns", []string{"--network", oldNetwork}, map[string]string{
			"in from outside": "from 192.0.2.20", "in by UDP from outside": "from 192.0.2.20",
			"in from the host": "from 192.0.2.10", "in from loopback": "from 10.0.2.2",
		}},
		// Here Podman itself forwards the ports, and hides the client's address.
		{"bridge", []string{"--network", "podman"}, map[string]string{
			"in from outside": "from 10.88.0.2", "in by UDP from outside": "from 10.88.0.2", "in from loopback": "from 10.88.0.2",
		}},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			output := story(t, "podman.sh", append([]string{"cleat"}, r.args...)...)
			if slices.Contains(r.args, oldNetwork) && !strings.HasPrefix(strings.Join(output["version"], ""), "podman version 5.") {
				t.Skipf("%s knows slirp4netns no more", output["version"])
			}
			for about, what := range common {
				if _, own := r.want[about]; !own {
					r.want[about] = what
				}
			}
			check(t, output, r.want)
		})
	}
}

// block returns the block of a page of the documentation that has a line with these words.
func block(t *testing.T, page, words string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../doc", page))
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range strings.Split(string(text), "```sh\n")[1:] {
		if b, _, _ = strings.Cut(b, "```"); strings.Contains(b, words) {
			return b
		}
	}
	t.Fatalf("%s: no block has %q", page, words)
	return ""
}

// Podman puts containers on networks of cleat, in each way that the page has, with its blocks.
func TestNetworks(t *testing.T) {
	build(t, "cleat-cni", "cleat/cmd/cleat-cni")
	for name, words := range map[string]string{"in-place": "podman network create shop", "plugin": "network create --driver cleat", "rootless": "--rootless-netns"} {
		if err := os.WriteFile(filepath.Join(programs, name+".sh"), []byte(block(t, "dropin.md", words)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for mode, ls := range map[string][]string{ // how the lines begin
		"in-place": {"api podman eth0 "},
		"plugin":   {"api podman eth0 ", "guest netns eth0 "},
		"both":     {"api podman eth0 ", "guest netns eth0 "},
		"rootless": {"shop bridge 10.20.0.0/24 1 up"},
	} {
		t.Run(mode, func(t *testing.T) {
			output := story(t, "networks.sh", mode)
			want := map[string]string{
				"typed": "", "by name": "1", "name": "1", "out": "hello from outside", "removed": "1",
				"published, from outside": "from", "published, from loopback": "from",
			}
			if mode == "plugin" || mode == "both" {
				want["from a namespace"] = "reached"
			}
			if mode != "rootless" {
				want["left"] = "0 devices, 0 files"
			}
			check(t, output, want)
			if got := output["ls"]; !slices.EqualFunc(got, ls, strings.HasPrefix) {
				t.Errorf("listed %q, want %q", got, ls)
			}
		})
	}
}

// cleat run serves namespaces that engines have created.
func TestNamespace(t *testing.T) {
	for _, engine := range []string{"podman", "apptainer"} {
		t.Run(engine, func(t *testing.T) {
			check(t, story(t, "netns.sh", engine), map[string]string{
				"start": "0", "cleat": "0", "name": "1", "in from outside": "from 192.0.2.20",
				"out": "hello from outside", "out later": "hello from outside",
			})
		})
	}
}

// An ordinary user's containers have names for the user and, prefixed with the user's
// name, for root.
func TestFind(t *testing.T) {
	want := map[string]string{}
	for _, user := range []string{"root", "as_user"} {
		front := "podman:tester/front pid PID net NET owner 1500 host false"
		for _, word := range []string{"front", "podman:tester/front", "id"} {
			want[user+" "+word] = front
		}
		want[user+" sim"] = "apptainer:tester/sim pid PID net NET owner 1500 host false"
		want[user+" apptainer:tester/near"] = "apptainer:tester/near pid PID net NET owner 1500 host true"
		want[user+" idle"] = `podman container "idle" of tester is not running: stopped; start it: podman start idle`
	}
	want["root front"] = `no container, and no network namespace, is called "front"; did you mean podman:tester/front?`
	want["root idle"] = strings.Replace(want["root idle"], "podman start", "sudo -iu tester podman start", 1)
	check(t, story(t, "find.sh"), want)
}

// Root attaches an ordinary user's containers.
func TestAttach(t *testing.T) {
	output := story(t, "attach.sh")
	for name, engine := range map[string]string{"web": "podman", "sim": "apptainer"} {
		ref := engine + ":tester/" + name
		check(t, output, map[string]string{
			name + " bridge":        ref + " has lan0: bridge on br0, 203.0.113.30/24, 2001:db8::30/64\nexit 0",
			name + " detach":        "exit 0\nexit 0",
			name + " from the host": "reached", name + " from outside": "reached",
			name + " detached": "everything as before",
			name + " ended":    "cleat: error: nothing was changed: the container is gone\ncleat: hint: start it, and attach it again\nexit 1",
		})
		for _, line := range []string{ref + " has lan1: macvlan on ext0, 192.0.2.30/24", "exit 0"} {
			if !slices.Contains(output[name+" macvlan"], line) {
				t.Errorf("%s: %q is missing in: %q", name, line, output[name+" macvlan"])
			}
		}
		for _, link := range []string{"lan0", "lan1"} {
			if !slices.ContainsFunc(output[name+" ls"], func(l string) bool { return strings.HasPrefix(l, ref+"  "+link) && strings.HasSuffix(l, "attached") }) {
				t.Errorf("%s: %s is not listed: %q", name, link, output[name+" ls"])
			}
		}
	}
}

func TestRootlessKit(t *testing.T) {
	want := map[string]string{
		"rootlesskit": "0", "helpers": "1", "helpers afterwards": "0",
		"resolver": "nameserver 10.0.2.3", "out": "hello from outside", "name": "1", "ping": "1",
		"host's loopback by the gateway": "hello from the host",
		"in from outside":                "from 192.0.2.20", "in by UDP from outside": "from 192.0.2.20",
		"in from loopback": "from 10.0.2.2", "in at loopback only": "from 10.0.2.2", "in at loopback only, from outside": "refused",
	}
	t.Run("slirp4netns", func(t *testing.T) {
		check(t, story(t, "rootlesskit.sh", "cleat", "slirp4netns"), want)
	})
	t.Run("pasta", func(t *testing.T) {
		newer := os.Getenv("CLEAT_ROOTLESSKIT")
		if newer == "" {
			t.Skip("CLEAT_ROOTLESSKIT names no RootlessKit newer than 2.2, whose pasta driver waits for pasta")
		}
		b, err := os.ReadFile(newer)
		if err != nil {
			t.Fatal(err)
		}
		into := filepath.Join(programs, "rootlesskit")
		if err := os.WriteFile(into, b, 0o755); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(into)
		output := story(t, "rootlesskit.sh", "cleat", "pasta")
		check(t, output, map[string]string{
			"rootlesskit": "0", "helpers": "1", "helpers afterwards": "0",
			"resolver": "nameserver 10.0.2.3", "out": "hello from outside", "name": "1", "ping": "1",
			"host's loopback by the gateway": "hello from the host",
			"in from outside":                "from 192.0.2.20", "in by UDP from outside": "from 192.0.2.20",
		})
	})
	t.Run("slirp4netns and a detached namespace", func(t *testing.T) {
		check(t, story(t, "detached.sh"), map[string]string{
			"rootlesskit": "0", "out": "hello from outside", "helpers afterwards": "0",
		})
	})
	t.Run("slirp4netns without the host's loopback", func(t *testing.T) {
		output := story(t, "rootlesskit.sh", "cleat", "slirp4netns", "--disable-host-loopback")
		check(t, output, map[string]string{
			"rootlesskit": "0", "out": "hello from outside",
			"host's loopback by the gateway": "wget: can't connect to remote host (10.0.2.2): Connection refused",
		})
	})
}

// Both ends of an experiment run in containers of Apptainer, which Debian 12 lacks, and
// nothing remains of them.
func TestBenchApptainer(t *testing.T) {
	output := story(t, "bench.sh")
	for _, what := range []string{"loopback in native", "loopback in apptainer", "veth in native", "veth in apptainer"} {
		if got := strings.Join(output[what], ""); got == "" || got == "0" {
			t.Errorf("%s: %s samples", what, got)
		}
	}
	check(t, output, map[string]string{"bench": "0", "absent": "", "left": ""})
}
