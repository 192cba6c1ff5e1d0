package spanned

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"cleat/bench/named"
	"cleat/internal/program"
	"cleat/lab"
	"cleat/link"
)

// Config says which program makes a network.
type Config struct {
	Name      string // in package catalog
	Dataplane string // how hosts reach each other's containers; "": the program's default
	Datapath  string // what forwards packets; "": the program's default
	Dir       string // of the lab, for the program's files
	Program   string // path of cleat; "": this program
}

// Cluster is a network and its hosts. It is used from one goroutine.
type Cluster struct {
	cfg    Config
	driver driver
	hosts  []*Host
	serial int // of the containers that events make
}

// driver runs one program.
type driver interface {
	// prepare starts what runs on a host before it joins.
	prepare(ctx context.Context, h *Host) error
	// join makes a host take part. The first one begins the cluster, and makes the network.
	join(ctx context.Context, h *Host) error
	// create makes a container and sets its Node. If connected is set, a program that starts containers itself starts
	// it on the network, and sets Addr; others ignore connected.
	create(ctx context.Context, c *Container, connected bool) error
	// connect connects a container to the network: with a certain address, if it is valid. It sets Addr.
	connect(ctx context.Context, c *Container, a netip.Addr) (named.Usage, error)
	disconnect(ctx context.Context, c *Container) (named.Usage, error)
	// remove releases what create has made, except for the Node.
	remove(c *Container) error
	// release ends what prepare has started.
	release(h *Host) error
	// leave removes a host, which does not answer any more.
	leave(ctx context.Context, h *Host) error
	// misses reports whether a host says that another one is gone. The error is ErrNotApplicable if none ever does.
	misses(ctx context.Context, h, other *Host) (bool, error)
	// resolver returns where a container asks for names of the network.
	resolver(h *Host) netip.AddrPort
}

// Host is a host of a cluster.
type Host struct {
	Node *lab.Node
	Name string
	Addr netip.Addr // by which the others reach it

	cluster    *Cluster
	dir        string
	containers []*Container
}

// Container is a container on the network. If Run has made it, its link is eth0.
type Container struct {
	Node *lab.Node
	Name string
	Addr netip.Addr // on the network

	host     *Host
	path     string       // of its network namespace; "": it is an engine's own
	listener net.Listener // by which it answers; nil if it does not
}

// Subnet is that of all networks here.
var Subnet = named.Subnet

const (
	networkName = "web"
	inside      = "eth0" // link of a container
)

// devices are the dataplanes with a device of the same name.
var devices = []string{"vxlan", "geneve", "wireguard"}

var drivers = map[string]func(Config) (driver, error){
	"cleat-overlay":   openCleat,
	"flannel-vxlan":   openFlannel("vxlan"),
	"flannel-host-gw": openFlannel("host-gw"),
	"docker-overlay":  openDocker,
	"bird-routes":     openBird,
	"weave":           openWeave,
}

// Open returns a cluster without hosts. The error wraps a *link.Lack for what the machine lacks.
func Open(cfg Config) (*Cluster, error) {
	if err := check(cfg); err != nil {
		return nil, err
	}
	if slices.Contains(devices, cfg.Dataplane) {
		if err := link.Probe(cfg.Dataplane); err != nil {
			return nil, err
		}
	}
	c := &Cluster{cfg: cfg}
	var err error
	c.driver, err = drivers[cfg.Name](cfg)
	return c, err
}

// Add makes a node a host of the cluster. Nothing else runs in its network namespace, and it has an address by
// which the others reach it. On an error the host counts as added, so that Close ends what was started.
func (c *Cluster) Add(ctx context.Context, node *lab.Node, name string, addr netip.Addr) (*Host, error) {
	h, err := c.newHost(ctx, node, name, addr)
	if err != nil {
		return nil, err
	}
	return h, h.join(ctx)
}

// newHost makes a node a host that has not joined yet. On an error it is one as well.
func (c *Cluster) newHost(ctx context.Context, node *lab.Node, name string, addr netip.Addr) (*Host, error) {
	h := &Host{Node: node, Name: name, Addr: addr, cluster: c, dir: filepath.Join(c.cfg.Dir, name)}
	c.hosts = append(c.hosts, h)
	if err := os.MkdirAll(h.dir, 0o755); err != nil {
		return nil, fmt.Errorf("make a directory for host %s: %w", name, err)
	}
	if err := c.driver.prepare(ctx, h); err != nil {
		return nil, fmt.Errorf("prepare host %s: %w", name, err)
	}
	return h, nil
}

// Hosts returns the hosts in the order in which they were added.
func (c *Cluster) Hosts() []*Host { return slices.Clone(c.hosts) }

func (h *Host) join(ctx context.Context) error {
	if err := h.cluster.driver.join(ctx, h); err != nil {
		return fmt.Errorf("make host %s take part: %w", h.Name, err)
	}
	return nil
}

// start starts a program that runs until the host is closed, in the host's directory. Its output goes to a file there.
func (h *Host) start(path string, args ...string) error {
	out, err := os.OpenFile(filepath.Join(h.dir, filepath.Base(path)+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	// weaver asks its makers for a newer version without CHECKPOINT_DISABLE.
	args = append([]string{"env", "--chdir", h.dir, "CHECKPOINT_DISABLE=1", "XTABLES_LOCKFILE=" + filepath.Join(h.dir, "xtables.lock"), path}, args...)
	p, err := h.Node.Start(lab.Command{Args: args, Stdout: out, Stderr: out})
	if err != nil {
		return err
	}
	go func() { _ = p.Wait() }() // until close kills it
	return nil
}

// Create makes a container that is not on the network yet.
func (h *Host) Create(ctx context.Context, name string) (*Container, error) {
	return h.newContainer(ctx, name, false)
}

// Run makes a container on the network.
func (h *Host) Run(ctx context.Context, name string) (*Container, error) {
	c, err := h.newContainer(ctx, name, true)
	if err == nil && !c.Addr.IsValid() {
		_, err = c.Connect(ctx)
	}
	return c, err
}

func (h *Host) newContainer(ctx context.Context, name string, connected bool) (*Container, error) {
	c := &Container{Name: name, host: h}
	h.containers = append(h.containers, c)
	if err := h.cluster.driver.create(ctx, c, connected); err != nil {
		return nil, errors.Join(fmt.Errorf("make container %s: %w", name, err), c.Close())
	}
	return c, nil
}

// Connect connects the container to the network.
func (c *Container) Connect(ctx context.Context) (named.Usage, error) {
	return c.host.cluster.driver.connect(ctx, c, netip.Addr{})
}

// Disconnect removes the container from the network.
func (c *Container) Disconnect(ctx context.Context) (named.Usage, error) {
	return c.host.cluster.driver.disconnect(ctx, c)
}

// Close releases the container. It does not disconnect it. Closing twice is harmless.
func (c *Container) Close() error {
	all := c.host.containers
	i := slices.Index(all, c)
	if i < 0 {
		return nil
	}
	c.host.containers = slices.Delete(all, i, i+1)
	var errs []error
	if c.listener != nil {
		errs = append(errs, c.listener.Close())
	}
	errs = append(errs, c.host.cluster.driver.remove(c))
	if c.Node != nil {
		errs = append(errs, c.Node.Close())
	}
	return errors.Join(errs...)
}

// close ends the programs of a host, and releases its containers.
func (h *Host) close() error {
	return errors.Join(h.cluster.driver.release(h), named.EndProcesses(h.Node.NS), h.closeContainers())
}

func (h *Host) closeContainers() error {
	var errs []error
	for len(h.containers) > 0 {
		errs = append(errs, h.containers[0].Close())
	}
	return errors.Join(errs...)
}

// Close releases the containers and ends the programs. The nodes of hosts are the caller's.
func (c *Cluster) Close() error {
	var errs []error
	for _, h := range c.hosts { // while all programs run: Swarm takes half a minute for a container without its managers
		errs = append(errs, h.closeContainers())
	}
	for _, h := range c.hosts {
		errs = append(errs, h.close())
	}
	return errors.Join(errs...)
}

// Check reports whether this lab can make the network of that name. The error is a *link.Lack for the first thing
// that is missing.
func Check(name string) error { return check(Config{Name: name}) }

func check(cfg Config) error {
	if drivers[cfg.Name] == nil {
		return fmt.Errorf("unknown network %q", cfg.Name)
	}
	if f, in := lab.Inside(); !in || f == lab.User {
		return &link.Lack{What: cfg.Name, Reason: "networks that span hosts need a lab made by root", Remedy: "run the command with sudo, and not with --lab user"}
	}
	switch cfg.Name {
	case "cleat-overlay":
		_, err := findNode(cfg)
		return err
	case "docker-overlay":
		return checkDocker(cfg.Name)
	case "bird-routes":
		return checkPrograms(cfg.Name, birdPrograms)
	case "weave":
		return cmp.Or(checkPrograms(cfg.Name, weavePrograms), link.Probe("dummy"))
	}
	return checkFlannel(cfg.Name)
}

// neededProgram is a program that the machine must have.
type neededProgram struct {
	name, remedy string // the remedy says what supplies it
}

// checkPrograms returns a *link.Lack for the first program that is missing.
func checkPrograms(network string, programs []neededProgram) error {
	for _, p := range programs {
		if _, err := program.Find(p.name); err != nil {
			return &link.Lack{What: network, Reason: "the program " + p.name + " is not installed", Remedy: p.remedy}
		}
	}
	return nil
}

// findNode returns the path of cleat-node: beside the program, or as other programs are found. The error is a
// *link.Lack.
func findNode(cfg Config) (string, error) {
	self := cfg.Program
	if self == "" {
		var err error
		if self, err = os.Executable(); err != nil {
			return "", fmt.Errorf("find this program: %w", err)
		}
	}
	path, err := program.Find(filepath.Join(filepath.Dir(self), "cleat-node"))
	if err != nil {
		path, err = program.Find("cleat-node")
	}
	if err != nil {
		err = &link.Lack{What: cfg.Name, Reason: "the program cleat-node is not installed", Remedy: "make build, or install it with cleat"}
	}
	return path, err
}
