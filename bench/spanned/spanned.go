package spanned

import (
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
	"cleat/netns"
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
	serial int // of containers
}

// driver runs one program.
type driver interface {
	// join makes a host take part. The first one begins the cluster, and makes the network.
	join(ctx context.Context, h *Host) error
	// connect connects a container to the network: with a certain address, if it is valid.
	connect(ctx context.Context, c *Container, a netip.Addr) error
	disconnect(ctx context.Context, c *Container) error
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

// Container is a container on the network. Its link is eth0.
type Container struct {
	Node *lab.Node
	Name string
	Addr netip.Addr // on the network

	host     *Host
	path     string       // of its network namespace
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
	h := &Host{Node: node, Name: name, Addr: addr, cluster: c, dir: filepath.Join(c.cfg.Dir, name)}
	c.hosts = append(c.hosts, h)
	if err := os.MkdirAll(h.dir, 0o755); err != nil {
		return nil, fmt.Errorf("make a directory for host %s: %w", name, err)
	}
	if err := c.driver.join(ctx, h); err != nil {
		return nil, fmt.Errorf("make host %s take part: %w", name, err)
	}
	return h, nil
}

// Create makes a container that is not on the network yet.
func (h *Host) Create(name string) (*Container, error) {
	h.cluster.serial++
	node, err := lab.NewNode(name)
	if err != nil {
		return nil, err
	}
	c := &Container{Node: node, Name: name, host: h, path: filepath.Join(h.cluster.cfg.Dir, "netns", name)}
	if err := os.MkdirAll(filepath.Dir(c.path), 0o755); err != nil {
		return nil, errors.Join(err, node.Close())
	}
	if err := node.NS.Pin(c.path); err != nil {
		return nil, errors.Join(err, node.Close())
	}
	h.containers = append(h.containers, c)
	return c, nil
}

// Run makes a container on the network.
func (h *Host) Run(ctx context.Context, name string) (*Container, error) {
	c, err := h.Create(name)
	if err != nil {
		return nil, err
	}
	return c, h.cluster.driver.connect(ctx, c, netip.Addr{})
}

// close releases the container. It does not disconnect it.
func (c *Container) close() error {
	if c.path == "" {
		return nil
	}
	var errs []error
	if c.listener != nil {
		errs = append(errs, c.listener.Close())
	}
	errs = append(errs, netns.Unpin(c.path), c.Node.Close())
	c.path = ""
	return errors.Join(errs...)
}

// close ends the programs of a host, and releases its containers.
func (h *Host) close() error {
	errs := []error{named.EndProcesses(h.Node.NS)}
	for _, c := range h.containers {
		errs = append(errs, c.close())
	}
	h.containers = nil
	return errors.Join(errs...)
}

// Close ends the programs and releases the containers. The nodes of hosts are the caller's.
func (c *Cluster) Close() error {
	var errs []error
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
	if cfg.Name == "cleat-overlay" {
		_, err := findNode(cfg)
		return err
	}
	return checkFlannel(cfg.Name)
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
