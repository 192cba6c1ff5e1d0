package named

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"cleat/bench/container"
	"cleat/internal/program"
	"cleat/lab"
	"cleat/link"
	"cleat/netns"
)

// Config says which program makes a network, and where.
type Config struct {
	Name    string    // in package catalog
	Host    *lab.Node // nothing else runs in its network namespace
	Dir     string    // of the lab, for the program's files
	Program string    // path of cleat; "": this program
	// Datapath is what forwards packets of a network that `cleat net create` makes; "": its default.
	Datapath string
}

// Network is a named network. Connect and Disconnect are safe for concurrent use, the rest
// is used from one goroutine.
type Network struct {
	cfg        Config
	driver     driver
	serial     int
	containers map[*Container]bool
}

// driver runs one program.
type driver interface {
	// create makes a container, on the network if connected is set, by the program's own
	// way of starting one. It sets the container's namespace.
	create(ctx context.Context, c *Container, connected bool) error
	connect(ctx context.Context, c *Container) (Usage, error)
	disconnect(ctx context.Context, c *Container) (Usage, error)
	remove(c *Container) error
	close() error
}

// Subnet is that of all networks here.
var Subnet = netip.MustParsePrefix("198.18.0.0/16")

var gateway = netip.MustParseAddr("198.18.0.1")

const (
	networkName = "web"
	inside      = "eth0" // link of a container that has no other
)

var drivers = map[string]func(context.Context, Config) (driver, error){
	"cleat-bridge":        openCleat("bridge"),
	"cleat-routed":        openCleat("routed"),
	"docker-bridge":       openDocker,
	"netavark-bridge":     openNetavark,
	"cni-bridge":          openCNI,
	"cleat-cni":           openCleatCNI,
	"cleat-docker":        openCleatDocker(),
	"cleat-docker-direct": openCleatDocker("--opt", "cleat.direct=true"),
	"cleat-netavark":      openCleatNetavark,
}

// Open makes a network. The error wraps a *link.Lack for what the machine lacks. On any
// error no process is left behind.
func Open(ctx context.Context, cfg Config) (*Network, error) {
	if err := check(cfg); err != nil {
		return nil, err
	}
	n := &Network{cfg: cfg, containers: map[*Container]bool{}}
	var err error
	if n.driver, err = drivers[cfg.Name](ctx, cfg); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// Port is a published port, or Count of them in a row.
type Port struct {
	Host, Container uint16
	Count           int  // 0: 1
	UDP             bool // otherwise of TCP
}

func (p Port) protocol() string {
	if p.UDP {
		return "udp"
	}
	return "tcp"
}

// each calls f with every single port.
func each(ports []Port, f func(one Port)) {
	for _, p := range ports {
		for i := range max(p.Count, 1) {
			f(Port{Host: p.Host + uint16(i), Container: p.Container + uint16(i), UDP: p.UDP})
		}
	}
}

// rangeText returns a port, or the range of a Port.
func rangeText(first uint16, count int) string {
	if count <= 1 {
		return fmt.Sprint(first)
	}
	return fmt.Sprintf("%d-%d", first, int(first)+count-1)
}

// publish returns the ports as cleat and Docker take them: HOST:CONTAINER/PROTOCOL.
func publish(ports []Port) []string {
	var texts []string
	for _, p := range ports {
		texts = append(texts, rangeText(p.Host, p.Count)+":"+rangeText(p.Container, p.Count)+"/"+p.protocol())
	}
	return texts
}

// Container is a container that is on the network or can be connected to it.
type Container struct {
	Name  string
	Node  *lab.Node // its network
	Ports []Port    // published while it is connected

	network   *Network
	companion bool   // see CreateCompanion
	serial    int    // from 1
	path      string // of its network namespace; "": it is an engine's own
	result    []byte // what the program printed when it connected the container
}

// Create makes a container that is not on the network yet. Its ports are published when it
// is connected.
func (n *Network) Create(ctx context.Context, name string, ports []Port) (*Container, error) {
	return n.newContainer(ctx, name, ports, false, false)
}

// CreateCompanion is Create for a container that is only there beside those that are measured. A network of
// several engines takes a network namespace, which costs least.
func (n *Network) CreateCompanion(ctx context.Context, name string, ports []Port) (*Container, error) {
	return n.newContainer(ctx, name, ports, false, true)
}

// Run makes a container on the network.
func (n *Network) Run(ctx context.Context, name string, ports []Port) (*Container, error) {
	return n.newContainer(ctx, name, ports, true, false)
}

func (n *Network) newContainer(ctx context.Context, name string, ports []Port, connected, companion bool) (*Container, error) {
	n.serial++
	c := &Container{Name: name, Ports: ports, network: n, companion: companion, serial: n.serial}
	n.containers[c] = true
	if err := n.driver.create(ctx, c, connected); err != nil {
		return nil, errors.Join(fmt.Errorf("make container %s: %w", name, err), c.Close())
	}
	return c, nil
}

// Connect connects the container to the network.
func (c *Container) Connect(ctx context.Context) (Usage, error) {
	return c.network.driver.connect(ctx, c)
}

// Disconnect removes the container from the network.
func (c *Container) Disconnect(ctx context.Context) (Usage, error) {
	return c.network.driver.disconnect(ctx, c)
}

// Close removes the container. It does not disconnect it. Closing twice is harmless.
func (c *Container) Close() error {
	if !c.network.containers[c] {
		return nil
	}
	delete(c.network.containers, c)
	err := c.network.driver.remove(c)
	if c.Node != nil {
		err = errors.Join(err, c.Node.Close())
	}
	return err
}

// Close ends all processes in the host's network namespace, and removes the containers.
func (n *Network) Close() error {
	var errs []error
	if n.driver != nil {
		errs = append(errs, n.driver.close())
	}
	errs = append(errs, EndProcesses(n.cfg.Host.NS))
	for c := range n.containers {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// Processes returns the ids of the program's processes: all in the host's network
// namespace.
func (n *Network) Processes() ([]int, error) { return processesIn(n.cfg.Host.NS) }

// namespaces is the part of a driver whose containers are network namespaces with a path.
type namespaces struct {
	dir string // of the paths
}

// newNamespace makes the container's namespace.
func (d namespaces) newNamespace(c *Container) (err error) {
	if err := os.MkdirAll(d.dir, 0o755); err != nil {
		return fmt.Errorf("make a directory for namespaces: %w", err)
	}
	if c.Node, err = lab.NewNode(c.Name); err != nil {
		return err
	}
	path := filepath.Join(d.dir, c.Name)
	if err := c.Node.NS.Pin(path); err != nil {
		return err
	}
	c.path = path
	return nil
}

func (d namespaces) remove(c *Container) error {
	if c.path == "" {
		return nil
	}
	return netns.Unpin(c.path)
}

// connected makes a container and connects it.
func connected(ctx context.Context, d interface {
	newNamespace(*Container) error
	connect(context.Context, *Container) (Usage, error)
}, c *Container, connect bool) error {
	if err := d.newNamespace(c); err != nil || !connect {
		return err
	}
	_, err := d.connect(ctx, c)
	return err
}

// baseEnv returns the environment of all programs.
func (c Config) baseEnv(own ...string) []string {
	return append([]string{"PATH=" + program.SearchPath(), "HOME=" + c.Dir}, own...)
}

// stateDir keeps the files of cleat in the lab.
func (c Config) stateDir() string { return "CLEAT_STATE_DIR=" + filepath.Join(c.Dir, "state") }

// locks keeps iptables's lock, which is a file below /run otherwise, in the lab.
func (c Config) locks() string { return "XTABLES_LOCKFILE=" + filepath.Join(c.Dir, "xtables.lock") }

// Check reports whether this lab can make the named network. The error is a *link.Lack for
// the first thing that is missing.
func Check(name string) error { return check(Config{Name: name}) }

func check(cfg Config) error {
	name := cfg.Name
	if drivers[name] == nil {
		return fmt.Errorf("unknown network %q", name)
	}
	if f, inside := lab.Inside(); !inside || f == lab.User {
		return &link.Lack{What: name, Reason: "engines' networks need a lab made by root", Remedy: "run the command with sudo, and not with --lab user"}
	}
	var err error
	switch name {
	case "docker-bridge", "cleat-docker", "cleat-docker-direct":
		var lack *link.Lack
		if err = container.Check("docker"); errors.As(err, &lack) {
			err = &link.Lack{What: name, Reason: lack.Reason, Remedy: lack.Remedy}
		}
	case "netavark-bridge":
		_, err = findNetavark()
	case "cni-bridge":
		if _, err = PluginDir("bridge", "portmap", "firewall", "host-local"); err == nil {
			err = checkIPTables(name)
		}
	case "cleat-cni", "cleat-netavark":
		_, err = findCleatPlugin(cfg)
	}
	return cmp.Or(err, link.Probe("veth"), link.Probe("bridge"))
}

// checkIPTables reports whether iptables is installed.
func checkIPTables(network string) error {
	if _, err := program.Find("iptables"); err != nil {
		return &link.Lack{What: network, Reason: "the program iptables is not installed", Remedy: "apt-get install iptables"}
	}
	return nil
}

// Address returns the container's address on the network. It is an error if there is none
// that can be used.
func (c *Container) Address() (netip.Addr, error) {
	a, err := UsableAddress(c.Node.NS)
	if err == nil && !a.IsValid() {
		err = fmt.Errorf("container %s has no usable address on the network", c.Name)
	}
	return a, err
}
