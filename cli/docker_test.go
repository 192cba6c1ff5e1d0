package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// dockerStories are those of testdata/engines/dockerdriver.sh, in their order.
var dockerStories = []string{
	"create", "run", "names", "publish", "publish_any", "taken_port", "mistakes", "addresses", "ipv6", "internal", "gateway_moves", "restart",
	"killed_keeper", "killed_daemon", "live_restore", "direct", "network_rm", "shared", "policy", "prune", "default_ipam", "routed", "macvlan", "rate",
	"compose", "loopback_resolver", "several_networks", "engines", "dead_keeper", "swarm", "upgrade", "nothing_left",
}

// A real Docker daemon has networks of Cleat: each story says what was not as expected, and that it ended.
func TestDockerDriver(t *testing.T) {
	box := filepath.Join(t.TempDir(), "box")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", box, "./testdata/box")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Setenv("BOX", box)
	told := engineStory(t, "dockerdriver.sh", "dockerd", "docker", "curl", "iptables", "nft")
	for _, name := range dockerStories {
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
