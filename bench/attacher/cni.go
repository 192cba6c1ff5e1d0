package attacher

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"

	"cleat/internal/program"
	"cleat/lab"
	"cleat/link"
)

// cni is the reference CNI plugins.
type cni struct {
	dir, link string
	host      *lab.Node
	conf      []byte
	env       []string
}

// pluginDirs are where distributions and the project's own archives have the
// plugins.
var pluginDirs = []string{"/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"}

// pluginDir is the first of those with all that is needed; else a *link.Lack.
func pluginDir() (string, error) {
	for _, dir := range pluginDirs {
		all := true
		for _, plugin := range []string{"bridge", "macvlan", "host-local"} {
			_, err := program.Find(filepath.Join(dir, plugin))
			all = all && err == nil
		}
		if all {
			return dir, nil
		}
	}
	return "", &link.Lack{What: "cni-plugins", Reason: "the reference CNI plugins are not installed", Remedy: "apt-get install containernetworking-plugins"}
}

// cniBridge is the plugin's usual name for its bridge.
const cniBridge = "cni0"

func openCNI(_ context.Context, s *Host) (tool, error) {
	dir, err := pluginDir()
	if err != nil {
		return nil, err
	}
	conf := map[string]any{
		"cniVersion": "1.0.0", "name": "wire", "type": s.cfg.Link,
		"ipam": map[string]any{
			"type": "host-local", "dataDir": filepath.Join(s.dir, "host-local"),
			"ranges": [][]map[string]string{{{"subnet": network.String(), "gateway": gateway.String()}}},
			"routes": []map[string]string{{"dst": "0.0.0.0/0"}},
		},
	}
	if s.cfg.Link == "bridge" {
		conf["bridge"], conf["isGateway"], conf["ipMasq"] = cniBridge, true, true
	} else {
		conf["master"], conf["mode"] = parent, "bridge"
	}
	c := &cni{dir: dir, link: s.cfg.Link, host: s.host,
		env: []string{"CNI_PATH=" + dir, "CNI_IFNAME=" + inside, "XTABLES_LOCKFILE=" + filepath.Join(s.dir, "xtables.lock")}}
	if c.conf, err = json.Marshal(conf); err != nil {
		return nil, fmt.Errorf("write a configuration for the CNI plugins: %w", err)
	}
	return c, nil
}

func (c *cni) guest(serial int) (guest, error) { return newGuest(serial) }

func (c *cni) attach(g guest) command { return c.command("ADD", g) }
func (c *cni) detach(g guest) command { return c.command("DEL", g) }

func (c *cni) command(verb string, g guest) command {
	env := append([]string{"CNI_COMMAND=" + verb, fmt.Sprintf("CNI_CONTAINERID=container%d", g.serial), "CNI_NETNS=" + g.ns.Path()}, c.env...)
	return command{args: []string{filepath.Join(c.dir, c.link)}, env: env, in: c.conf}
}

// detached removes the bridge, which the plugin leaves.
func (c *cni) detached() error {
	if c.link != "bridge" {
		return nil
	}
	l, err := link.Find(c.host.NS, cniBridge)
	if err != nil {
		return err
	}
	return l.Close()
}

func (c *cni) close() error { return nil }
