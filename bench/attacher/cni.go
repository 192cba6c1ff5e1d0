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

// cni attaches by the reference CNI plugins.
type cni struct {
	bareEndpoints
	dir, link string
	host      *lab.Node
	conf      []byte
	env       []string
}

// pluginDirs are where distributions and the project's own archives install the
// plugins.
var pluginDirs = []string{"/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"}

// pluginDir returns the first of pluginDirs that has all plugins needed. The error is a
// *link.Lack.
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

func openCNI(_ context.Context, h *Host) (driver, error) {
	dir, err := pluginDir()
	if err != nil {
		return nil, err
	}
	conf := map[string]any{
		"cniVersion": "1.0.0", "name": "wire", "type": h.cfg.Link,
		"ipam": map[string]any{
			"type": "host-local", "dataDir": filepath.Join(h.dir, "host-local"),
			"ranges": [][]map[string]string{{{"subnet": network.String(), "gateway": gateway.String()}}},
			"routes": []map[string]string{{"dst": "0.0.0.0/0"}},
		},
	}
	if h.cfg.Link == "bridge" {
		conf["bridge"], conf["isGateway"], conf["ipMasq"] = cniBridge, true, true
	} else {
		conf["master"], conf["mode"] = parent, "bridge"
	}
	c := &cni{dir: dir, link: h.cfg.Link, host: h.node,
		env: []string{"CNI_PATH=" + dir, "CNI_IFNAME=" + inside, "XTABLES_LOCKFILE=" + filepath.Join(h.dir, "xtables.lock")}}
	if c.conf, err = json.Marshal(conf); err != nil {
		return nil, fmt.Errorf("write a configuration for the CNI plugins: %w", err)
	}
	return c, nil
}

func (c *cni) attach(e endpoint) command { return c.command("ADD", e) }
func (c *cni) detach(e endpoint) command { return c.command("DEL", e) }

func (c *cni) command(verb string, e endpoint) command {
	env := append([]string{"CNI_COMMAND=" + verb, fmt.Sprintf("CNI_CONTAINERID=container%d", e.serial), "CNI_NETNS=" + e.ns.Path()}, c.env...)
	return command{args: []string{filepath.Join(c.dir, c.link)}, env: env, in: c.conf}
}

// removed removes the bridge, which the plugin leaves behind.
func (c *cni) removed() error {
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
