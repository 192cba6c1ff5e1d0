package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"cleat/internal/program"
)

// dockerStories are those of testdata/engines/dockerdriver.sh, in their order.
var dockerStories = []string{
	"create", "run", "names", "publish", "publish_any", "taken_port", "mistakes", "addresses", "ipv6", "internal", "gateway_moves", "restart",
	"killed_keeper", "killed_daemon", "live_restore", "direct", "network_rm", "shared", "policy", "prune", "default_ipam", "routed", "macvlan", "rate",
	"compose", "loopback_resolver", "several_networks", "engines", "dead_keeper", "swarm", "upgrade", "nothing_left",
}

// A real Docker daemon has networks of Cleat: each story says what was not as expected, and that it ended. It does not
// run beside other tests: some stories ask a published port at once.
func TestDockerDriver(t *testing.T) {
	buildBox(t)
	checkStories(t, engineStory(t, "dockerdriver.sh", "dockerd", "docker", "curl", "iptables", "nft"), dockerStories)
}

// nerdctlStories are those of testdata/engines/nerdctl.sh, in their order.
var nerdctlStories = []string{
	"page", "names", "ports", "two_networks", "compose", "restart", "killed_container", "killed_containerd", "forgotten", "killed_keeper",
	"nothing_left",
}

// nerdctl runs containers of a real containerd on networks of Cleat, as doc/plugins.md says.
func TestNerdctl(t *testing.T) { testClient(t, "nerdctl", nerdctlStories) }

// crictlStories are those of testdata/engines/crictl.sh, in their order.
var crictlStories = []string{"page", "names", "container", "stop", "many", "killed_containerd", "forgotten", "nothing_left"}

// A real containerd runs pods on a network of Cleat, as a kubelet asks for them.
func TestCrictl(t *testing.T) { testClient(t, "crictl", crictlStories) }

// testClient checks what a client of containerd does that Debian has no package of.
func testClient(t *testing.T, name string, stories []string) {
	if _, err := program.Find(name); err != nil {
		t.Skipf("no program %s: Debian 12 has no package of it; doc/plugins.md lists the versions that were tried", name)
	}
	t.Parallel()
	buildBox(t)
	told := engineStory(t, name+".sh", "containerd", "ctr", "runc", "nft")
	tells(t, told, "plugins.md", "typed cleat net cni-conf …")
	checkStories(t, told, stories)
}

// buildBox builds the program that containers of stories have, where they look for it.
func buildBox(t *testing.T) {
	t.Helper()
	if err := boxBuilt(); err != nil {
		t.Fatal(err)
	}
}

var boxBuilt = sync.OnceValue(func() error {
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", filepath.Join(binDir, "box"), "./testdata/box")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the program of containers: %w: %s", err, out)
	}
	return nil
})

// checkStories checks that each story said nothing but that it ended.
func checkStories(t *testing.T, told map[string][]string, names []string) {
	t.Helper()
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			said := told[name]
			switch {
			case len(said) == 0:
				t.Error("the story did not end")
			case said[0] == "skipped":
				t.Skip("a program or a kind of link is missing")
			}
			for _, text := range said[:max(len(said)-1, 0)] {
				t.Error(text)
			}
		})
	}
}
