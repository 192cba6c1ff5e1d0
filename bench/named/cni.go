package named

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"

	"cleat/internal/program"
	"cleat/link"
)

// cni runs the reference CNI plugins bridge and portmap.
type cni struct {
	namespaces
	cfg     Config
	plugins string // directory
	env     []string
}

// pluginDirs are where distributions and the project's own archives install the plugins.
var pluginDirs = []string{"/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"}

// PluginDir returns the first directory that has all of these CNI plugins. The error is a
// *link.Lack.
func PluginDir(plugins ...string) (string, error) {
	for _, dir := range pluginDirs {
		all := true
		for _, plugin := range plugins {
			_, err := program.Find(filepath.Join(dir, plugin))
			all = all && err == nil
		}
		if all {
			return dir, nil
		}
	}
	return "", &link.Lack{What: "CNI", Reason: "the reference CNI plugins are not installed", Remedy: "apt-get install containernetworking-plugins"}
}

func openCNI(_ context.Context, cfg Config) (driver, error) {
	dir, err := PluginDir("bridge", "portmap", "host-local")
	if err != nil {
		return nil, err
	}
	return &cni{
		namespaces: namespaces{filepath.Join(cfg.Dir, "netns")}, cfg: cfg, plugins: dir,
		env: cfg.baseEnv("CNI_PATH="+dir, "CNI_IFNAME="+inside, cfg.locks()),
	}, nil
}

func (c *cni) create(ctx context.Context, one *Container, connect bool) error {
	return connected(ctx, c, one, connect)
}

// bridgeConf and portmapConf are configurations of the plugins, as libcni derives them from
// a list such as the one that Debian's package podman installs.
func (c *cni) bridgeConf() map[string]any {
	return map[string]any{
		"cniVersion": "1.0.0", "name": networkName, "type": "bridge",
		"bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
		"ipam": map[string]any{
			"type": "host-local", "dataDir": filepath.Join(c.cfg.Dir, "host-local"),
			"ranges": [][]map[string]string{{{"subnet": Subnet.String(), "gateway": gateway.String()}}},
			"routes": []map[string]string{{"dst": "0.0.0.0/0"}},
		},
	}
}

func (c *cni) portmapConf(one *Container) map[string]any {
	type mapping struct {
		HostPort      uint16 `json:"hostPort"`
		ContainerPort uint16 `json:"containerPort"`
		Protocol      string `json:"protocol"`
	}
	var mappings []mapping
	each(one.Ports, func(host, container uint16) { mappings = append(mappings, mapping{host, container, "tcp"}) })
	return map[string]any{
		"cniVersion": "1.0.0", "name": networkName, "type": "portmap", "snat": true,
		"runtimeConfig": map[string]any{"portMappings": mappings},
		"prevResult":    json.RawMessage(one.result),
	}
}

func (c *cni) connect(ctx context.Context, one *Container) (Usage, error) {
	bridge, err := c.plugin(ctx, "ADD", one, c.bridgeConf())
	if err != nil {
		return bridge, err
	}
	one.result = bridge.Output
	if len(one.Ports) == 0 {
		return bridge, nil
	}
	portmap, err := c.plugin(ctx, "ADD", one, c.portmapConf(one))
	return bridge.then(portmap), err
}

// disconnect runs the plugins in the reverse order.
func (c *cni) disconnect(ctx context.Context, one *Container) (Usage, error) {
	if len(one.Ports) == 0 {
		return c.plugin(ctx, "DEL", one, c.bridgeConf())
	}
	portmap, err := c.plugin(ctx, "DEL", one, c.portmapConf(one))
	if err != nil {
		return portmap, err
	}
	bridge, err := c.plugin(ctx, "DEL", one, c.bridgeConf())
	return portmap.then(bridge), err
}

func (c *cni) plugin(ctx context.Context, verb string, one *Container, conf map[string]any) (Usage, error) {
	in, err := json.Marshal(conf)
	if err != nil {
		return Usage{}, fmt.Errorf("write a configuration for the CNI plugins: %w", err)
	}
	env := append([]string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + one.Name, "CNI_NETNS=" + one.path}, c.env...)
	name, _ := conf["type"].(string)
	return Exec(ctx, c.cfg.Host, Command{Args: []string{filepath.Join(c.plugins, name)}, Env: env, In: in})
}

func (c *cni) close() error { return nil }
