package named

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"cleat/internal/program"
	"cleat/link"
)

// netavark runs netavark, Podman's network program, or cleat in its place.
type netavark struct {
	namespaces
	cfg  Config
	line []string // the beginning of each command
	env  []string

	// mu makes commands follow each other, as Podman's lock on its networks does
	// (libnetwork/netavark, Setup). Otherwise they fail: "iptables: Chain already exists".
	mu sync.Mutex
}

// netavarkDirs are where distributions install netavark and aardvark-dns
// (containers.conf(5), helper_binaries_dir). One in the PATH takes precedence.
var netavarkDirs = []string{"/usr/local/libexec/podman", "/usr/local/lib/podman", "/usr/libexec/podman", "/usr/lib/podman"}

// aardvark is netavark's name server, in the same directory.
const aardvark = "aardvark-dns"

// findNetavark returns the path of netavark. The error is a *link.Lack.
func findNetavark() (string, error) {
	const what = "netavark-bridge"
	path, err := program.Find("netavark")
	for i := 0; err != nil && i < len(netavarkDirs); i++ {
		path, err = program.Find(filepath.Join(netavarkDirs[i], "netavark"))
	}
	if err != nil {
		return "", &link.Lack{What: what, Reason: "the program netavark is not installed", Remedy: "apt-get install netavark"}
	}
	if _, err := program.Find(filepath.Join(filepath.Dir(path), aardvark)); err != nil {
		return "", &link.Lack{What: what, Reason: "the program aardvark-dns is not installed beside " + path, Remedy: "apt-get install aardvark-dns"}
	}
	return path, checkIPTables(what)
}

// netavarkRuns are the programs that netavark may run.
var netavarkRuns = []string{"iptables", "ip6tables", "nft"}

func openNetavark(_ context.Context, cfg Config) (driver, error) {
	path, err := findNetavark()
	if err != nil {
		return nil, err
	}
	n, err := newNetavark(cfg, path, "--aardvark-binary", filepath.Join(filepath.Dir(path), aardvark))
	if err != nil {
		return nil, err
	}
	for _, name := range netavarkRuns {
		if path, err := program.Find(name); err == nil {
			if err := os.Symlink(path, filepath.Join(cfg.bin(), name)); err != nil {
				return nil, fmt.Errorf("link %s for netavark: %w", name, err)
			}
		}
	}
	// Through D-Bus netavark would change the machine's firewalld, and by systemd-run it
	// would move a process of the machine that happens to have aardvark-dns's id.
	n.env = []string{"PATH=" + cfg.bin(), "HOME=" + cfg.Dir, "DBUS_SYSTEM_BUS_ADDRESS=unix:path=" + filepath.Join(cfg.Dir, "no-bus"), cfg.locks()}
	return n, nil
}

// openCleatNetavark has cleat-cni do the work of netavark, by whose name it is called.
func openCleatNetavark(_ context.Context, cfg Config) (driver, error) {
	path, err := findCleatPlugin(cfg)
	if err != nil {
		return nil, err
	}
	called := filepath.Join(cfg.bin(), "netavark")
	n, err := newNetavark(cfg, called)
	if err != nil {
		return nil, err
	}
	if err := os.Symlink(path, called); err != nil {
		return nil, fmt.Errorf("call cleat-cni netavark: %w", err)
	}
	search, err := cfg.linkCleat()
	n.env = []string{search, "HOME=" + cfg.Dir, cfg.stateDir()}
	return n, err
}

// linkCleat gives this program the name cleat, and returns the variable PATH with which cleat-cni finds it: it
// starts cleat, which starts the keeper.
func (c Config) linkCleat() (path string, err error) {
	self, err := os.Executable()
	if err == nil {
		err = os.MkdirAll(c.bin(), 0o755)
	}
	if err == nil {
		err = os.Symlink(cmp.Or(c.Program, self), filepath.Join(c.bin(), "cleat"))
	}
	if err != nil {
		return "", fmt.Errorf("link cleat for cleat-cni: %w", err)
	}
	return "PATH=" + c.bin() + ":" + program.SearchPath(), nil
}

// newNetavark makes the directories for a program, and the beginning of each of its commands.
func newNetavark(cfg Config, path string, options ...string) (*netavark, error) {
	config := filepath.Join(cfg.Dir, "netavark")
	for _, dir := range []string{cfg.bin(), config} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("make a directory for netavark: %w", err)
		}
	}
	line := append([]string{path, "--config", config}, options...)
	return &netavark{namespaces: namespaces{filepath.Join(cfg.Dir, "netns")}, cfg: cfg, line: line}, nil
}

// bin is the directory of programs that netavark may run, or that have its name.
func (c Config) bin() string { return filepath.Join(c.Dir, "bin") }

func (n *netavark) create(ctx context.Context, one *Container, connect bool) error {
	return connected(ctx, n, one, connect)
}

func (n *netavark) connect(ctx context.Context, one *Container) (Usage, error) {
	return n.run(ctx, "setup", one)
}

func (n *netavark) disconnect(ctx context.Context, one *Container) (Usage, error) {
	return n.run(ctx, "teardown", one)
}

func (n *netavark) run(ctx context.Context, verb string, one *Container) (Usage, error) {
	in, err := json.Marshal(n.options(one))
	if err != nil {
		return Usage{}, fmt.Errorf("write options for netavark: %w", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return Exec(ctx, n.cfg.Host, Command{Args: append(slices.Clone(n.line), verb, one.path), Env: n.env, In: in})
}

// networkID is an arbitrary id of the network, in the form of Podman's.
const networkID = "2f259bab93aaaaa2542ba43ef33eb990d0999ee1b9924b557b7be53c0b7a1bb9"

// options returns what Podman gives netavark for a container on a network that
// `podman network create` made.
func (n *netavark) options(one *Container) map[string]any {
	type mapping struct {
		HostIP        string `json:"host_ip"`
		ContainerPort uint16 `json:"container_port"`
		HostPort      uint16 `json:"host_port"`
		Range         int    `json:"range"`
		Protocol      string `json:"protocol"`
	}
	mappings := []mapping{}
	each(one.Ports, func(p Port) {
		mappings = append(mappings, mapping{"", p.Container, p.Host, 1, p.protocol()})
	})
	return map[string]any{
		"container_id": one.Name, "container_name": one.Name, "port_mappings": mappings,
		"networks": map[string]any{networkName: map[string]any{
			"static_ips": []string{address(one.serial).String()}, "interface_name": inside, "aliases": []string{one.Name},
		}},
		"network_info": map[string]any{networkName: map[string]any{
			"name": networkName, "id": networkID, "driver": "bridge", "network_interface": "podman1",
			"created": "2026-01-01T00:00:00Z", "ipv6_enabled": false, "internal": false, "dns_enabled": true,
			"subnets":      []map[string]string{{"subnet": Subnet.String(), "gateway": gateway.String()}},
			"ipam_options": map[string]string{"driver": "host-local"},
		}},
	}
}

// address returns the address of a container: from 198.18.1.1 on, without the last octets 0
// and 255. After 64,516 containers it returns the first again.
func address(serial int) netip.Addr {
	const octets = 254
	i := (serial - 1) % (octets * octets)
	return netip.AddrFrom4([4]byte{198, 18, byte(1 + i/octets), byte(1 + i%octets)})
}

func (n *netavark) close() error { return nil }
