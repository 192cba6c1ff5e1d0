package named

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"cleat/internal/program"
	"cleat/link"
)

// cni runs CNI plugins: the reference plugins bridge, portmap and firewall, or cleat-cni.
type cni struct {
	namespaces
	cfg     Config
	chain   []plugin
	env     []string
	network driver // that the plugins connect to; nil: they make it
}

// plugin is a plugin in a chain. conf returns its configuration for a container; nil means that it has
// nothing to do.
type plugin struct {
	path string
	conf func(*Container) map[string]any
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

func openCNI(ctx context.Context, cfg Config) (driver, error) {
	dir, err := PluginDir("bridge", "portmap", "firewall", "host-local")
	if err != nil {
		return nil, err
	}
	c := newCNI(cfg, dir)
	c.chain = []plugin{
		{filepath.Join(dir, "bridge"), func(*Container) map[string]any { return c.bridgeConf() }},
		{filepath.Join(dir, "portmap"), portmapConf},
		{filepath.Join(dir, "firewall"), firewallConf},
	}
	return c, c.makeChains(ctx)
}

// makeChains makes the chains of the plugin firewall. Of several that make them at the same time, all but one
// would fail: "Chain already exists".
func (c *cni) makeChains(ctx context.Context) error {
	iptables, err := program.Find("iptables")
	if err != nil {
		return err
	}
	for _, chain := range []string{"CNI-FORWARD", "CNI-ADMIN"} {
		if _, err := Exec(ctx, c.cfg.Host, Command{Args: []string{iptables, "-w", "-N", chain}, Env: c.env}); err != nil {
			return err
		}
	}
	return nil
}

// cleatPlugin is the CNI plug-in for networks of cleat.
const cleatPlugin = "cleat-cni"

// findCleatPlugin returns the path of cleat-cni, which is our netavark as well: beside the program, or as
// other programs are found. The error is a *link.Lack.
func findCleatPlugin(cfg Config) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	path, err := program.Find(filepath.Join(filepath.Dir(cmp.Or(cfg.Program, self)), cleatPlugin))
	if err != nil {
		path, err = program.Find(cleatPlugin)
	}
	if err != nil {
		err = &link.Lack{What: cfg.Name, Reason: "the program cleat-cni is not installed", Remedy: "make build, or install it with cleat"}
	}
	return path, err
}

// openCleatCNI makes a network of cleat, and connects containers to it by cleat-cni.
func openCleatCNI(ctx context.Context, cfg Config) (driver, error) {
	path, err := findCleatPlugin(cfg)
	if err != nil {
		return nil, err
	}
	network, err := openCleat("bridge")(ctx, cfg)
	if err != nil {
		return nil, err
	}
	c := newCNI(cfg, filepath.Dir(path))
	// A keeper ends when its network has been without containers for a while. Then cleat-cni starts cleat.
	search, err := cfg.linkCleat()
	if err != nil {
		return nil, err
	}
	c.env = append(c.env, cfg.stateDir(), search)
	c.chain, c.network = []plugin{{path, cleatConf}}, network
	return c, nil
}

func newCNI(cfg Config, dir string) *cni {
	return &cni{
		namespaces: namespaces{filepath.Join(cfg.Dir, "netns")}, cfg: cfg,
		env: cfg.baseEnv("CNI_PATH="+dir, "CNI_IFNAME="+inside, cfg.locks()),
	}
}

func (c *cni) create(ctx context.Context, one *Container, connect bool) error {
	return connected(ctx, c, one, connect)
}

// bridgeConf and the functions below return configurations of plugins, as libcni derives them from a list
// such as the one that Debian's package podman installs.
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

// firewallConf is a configuration of the plugin that accepts forwarded packets of containers. Its other
// back end would be the machine's firewalld.
func firewallConf(*Container) map[string]any {
	return map[string]any{"cniVersion": "1.0.0", "name": networkName, "type": "firewall", "backend": "iptables"}
}

// cleatConf is what `cleat net cni-conf` prints, as libcni derives it.
func cleatConf(one *Container) map[string]any {
	conf := map[string]any{"cniVersion": "1.0.0", "name": networkName, "type": cleatPlugin, "network": networkName}
	if len(one.Ports) > 0 {
		conf["runtimeConfig"] = map[string]any{"portMappings": mappings(one)}
	}
	return conf
}

// portmapConf is a configuration of the plugin that publishes ports; nil if there are none.
func portmapConf(one *Container) map[string]any {
	if len(one.Ports) == 0 {
		return nil
	}
	return map[string]any{
		"cniVersion": "1.0.0", "name": networkName, "type": "portmap", "snat": true,
		"runtimeConfig": map[string]any{"portMappings": mappings(one)},
	}
}

// mapping is a published port in the capability portMappings.
type mapping struct {
	HostPort      uint16 `json:"hostPort"`
	ContainerPort uint16 `json:"containerPort"`
	Protocol      string `json:"protocol"`
}

func mappings(one *Container) (all []mapping) {
	each(one.Ports, func(p Port) { all = append(all, mapping{p.Host, p.Container, p.protocol()}) })
	return all
}

// connect runs the plugins in order, each with the result of the one before.
func (c *cni) connect(ctx context.Context, one *Container) (Usage, error) {
	var all Usage
	for i, p := range c.chain {
		u, err := c.run(ctx, "ADD", one, p)
		if i == 0 {
			all = u
		} else if u.Took > 0 {
			all = all.then(u)
		}
		if err != nil {
			return all, err
		}
		if len(u.Output) > 0 {
			one.result = u.Output
		}
	}
	return all, nil
}

// disconnect runs the plugins in the reverse order, each with the result of them all.
func (c *cni) disconnect(ctx context.Context, one *Container) (Usage, error) {
	var all Usage
	for _, p := range slices.Backward(c.chain) {
		u, err := c.run(ctx, "DEL", one, p)
		if all.Took == 0 {
			all = u
		} else if u.Took > 0 {
			all = all.then(u)
		}
		if err != nil {
			return all, err
		}
	}
	one.result = nil
	return all, nil
}

// run runs one plugin, unless it has nothing to do.
func (c *cni) run(ctx context.Context, verb string, one *Container, p plugin) (Usage, error) {
	conf := p.conf(one)
	if conf == nil {
		return Usage{}, nil
	}
	if one.result != nil {
		conf["prevResult"] = json.RawMessage(one.result)
	}
	in, err := json.Marshal(conf)
	if err != nil {
		return Usage{}, fmt.Errorf("write a configuration for the CNI plugins: %w", err)
	}
	env := append([]string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + one.Name, "CNI_NETNS=" + one.path}, c.env...)
	return Exec(ctx, c.cfg.Host, Command{Args: []string{p.path}, Env: env, In: in})
}

func (c *cni) close() error {
	if c.network == nil {
		return nil
	}
	return c.network.close()
}
