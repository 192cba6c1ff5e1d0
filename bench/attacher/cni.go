package attacher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"cleat/bench/named"
	"cleat/link"
)

// cni attaches by the reference CNI plugins.
type cni struct {
	bareEndpoints
	dir, link string
	host      *Host
	conf      []byte
	env       []string
}

// pluginDir returns a directory that has all plugins needed. The error is a *link.Lack.
func pluginDir() (string, error) {
	dir, err := named.PluginDir("bridge", "macvlan", "host-local")
	var lack *link.Lack
	if errors.As(err, &lack) {
		err = &link.Lack{What: "cni-plugins", Reason: lack.Reason, Remedy: lack.Remedy}
	}
	return dir, err
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
	c := &cni{dir: dir, link: h.cfg.Link, host: h,
		env: []string{"CNI_PATH=" + dir, "CNI_IFNAME=" + inside, "XTABLES_LOCKFILE=" + filepath.Join(h.dir, "xtables.lock")}}
	if c.conf, err = json.Marshal(conf); err != nil {
		return nil, fmt.Errorf("write a configuration for the CNI plugins: %w", err)
	}
	return c, nil
}

func (c *cni) attach(ctx context.Context, e endpoint) (named.Usage, error) {
	return c.run(ctx, "ADD", e)
}

func (c *cni) detach(ctx context.Context, e endpoint) (named.Usage, error) {
	return c.run(ctx, "DEL", e)
}

func (c *cni) run(ctx context.Context, verb string, e endpoint) (named.Usage, error) {
	env := append([]string{"CNI_COMMAND=" + verb, fmt.Sprintf("CNI_CONTAINERID=container%d", e.serial), "CNI_NETNS=" + e.ns.Path()}, c.env...)
	return c.host.run(ctx, command{args: []string{filepath.Join(c.dir, c.link)}, env: env, in: c.conf})
}

// removed removes the bridge, which the plugin leaves behind.
func (c *cni) removed() error {
	if c.link != "bridge" {
		return nil
	}
	l, err := link.Find(c.host.node.NS, cniBridge)
	if err != nil {
		return err
	}
	return l.Close()
}

func (c *cni) close() error { return nil }
