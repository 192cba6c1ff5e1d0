package spanned

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"cleat/bench/container"
	"cleat/bench/named"
	"cleat/internal/program"
	"cleat/lab"
	"cleat/link"
	"cleat/netns"
)

// docker runs a Docker daemon on each host. The daemons are a Swarm, of which the first three are managers.
type docker struct {
	cfg     Config
	hosts   []*Host // that have joined, or tried to
	daemons map[*Host]*daemon
	ids     map[*Host]string  // of the nodes in the Swarm
	tokens  map[string]string // to join, by role
}

// daemon is the Docker daemon of one host.
type daemon struct {
	networks *container.Networks
	client   []string
	manager  bool
}

const (
	// dockerHome is an internal network of each host, on which containers are before they are connected.
	dockerHome = "home"

	managers  = 3    // the fewest that outlive the death of one (raft)
	swarmPort = 2377 // of managers
)

// dockerResolver is where Docker answers queries of containers, in their own network namespaces.
var dockerResolver = netip.MustParseAddrPort("127.0.0.11:53")

func checkDocker(network string) error {
	var lack *link.Lack
	err := container.Check("docker")
	if errors.As(err, &lack) {
		err = &link.Lack{What: network, Reason: lack.Reason, Remedy: lack.Remedy}
	}
	return err
}

func openDocker(cfg Config) (driver, error) {
	return &docker{cfg: cfg, daemons: map[*Host]*daemon{}, ids: map[*Host]string{}, tokens: map[string]string{}}, nil
}

func (d *docker) prepare(ctx context.Context, h *Host) error {
	networks, err := container.OpenNetworks(ctx, container.Config{Scratch: d.cfg.Dir, Self: d.cfg.Program}, h.Node)
	if err != nil {
		return err
	}
	one := &daemon{networks: networks}
	d.daemons[h] = one
	if one.client, err = networks.Client(); err != nil {
		return err
	}
	return networks.CreateNetwork(ctx, dockerHome, "--internal", "--subnet", "192.0.2.0/24")
}

func (d *docker) join(ctx context.Context, h *Host) error {
	one := d.daemons[h]
	one.manager = len(d.hosts) < managers
	d.hosts = append(d.hosts, h)
	if len(d.hosts) == 1 {
		return d.begin(ctx, h)
	}
	role := "worker"
	if one.manager {
		role = "manager"
	}
	to := netip.AddrPortFrom(d.hosts[0].Addr, swarmPort).String()
	if _, err := one.networks.Run(ctx, "swarm", "join", "--advertise-addr", h.Addr.String(), "--token", d.tokens[role], to); err != nil {
		return err
	}
	return d.readID(ctx, h)
}

// begin makes the Swarm, and the network.
func (d *docker) begin(ctx context.Context, h *Host) (err error) {
	one := d.daemons[h]
	if _, err = one.networks.Run(ctx, "swarm", "init", "--advertise-addr", h.Addr.String()); err != nil {
		return err
	}
	for _, role := range []string{"worker", "manager"} {
		if d.tokens[role], err = one.networks.Run(ctx, "swarm", "join-token", "--quiet", role); err != nil {
			return err
		}
	}
	// It belongs to the Swarm, so that no daemon removes it when its host is closed.
	if _, err = one.networks.Run(ctx, "network", "create", "--driver", "overlay", "--attachable", "--subnet", Subnet.String(), networkName); err != nil {
		return err
	}
	return d.readID(ctx, h)
}

func (d *docker) readID(ctx context.Context, h *Host) (err error) {
	d.ids[h], err = d.daemons[h].networks.Run(ctx, "info", "--format", "{{.Swarm.NodeID}}")
	return err
}

func (d *docker) create(ctx context.Context, c *Container, connected bool) error {
	on := dockerHome
	if connected {
		on = networkName
	}
	pid, err := d.daemons[c.host].networks.Container(ctx, container.ContainerSpec{Name: c.Name, Network: on})
	if err != nil {
		return err
	}
	ns, err := netns.OfPID(pid)
	if err != nil {
		return err
	}
	c.Node = &lab.Node{NS: ns}
	if connected {
		return c.readAddress()
	}
	return nil
}

// readAddress sets the container's address from its network namespace.
func (c *Container) readAddress() error {
	a, err := named.UsableAddress(c.Node.NS)
	if err == nil && !a.IsValid() {
		err = fmt.Errorf("container %s has no usable address on the network", c.Name)
	}
	c.Addr = a
	return err
}

func (d *docker) connect(ctx context.Context, c *Container, a netip.Addr) (named.Usage, error) {
	var args []string
	if a.IsValid() {
		args = []string{"--ip", a.String()}
	}
	u, err := d.network(ctx, c, "connect", args...)
	if err != nil {
		return u, err
	}
	return u, c.readAddress()
}

func (d *docker) disconnect(ctx context.Context, c *Container) (named.Usage, error) {
	return d.network(ctx, c, "disconnect")
}

func (d *docker) network(ctx context.Context, c *Container, verb string, args ...string) (named.Usage, error) {
	line := slices.Concat(d.daemons[c.host].client, []string{"network", verb}, args, []string{networkName, c.Name})
	return named.Exec(ctx, c.host.Node, named.Command{Args: line, Env: []string{"PATH=" + program.SearchPath(), "HOME=" + c.host.dir}})
}

// remove does nothing for a container of a host that is released.
func (d *docker) remove(c *Container) error {
	if one := d.daemons[c.host]; one != nil {
		return one.networks.Remove(context.Background(), c.Name)
	}
	return nil
}

// release also removes all containers of the host. A daemon that has left ends at once; one that can't reach enough
// managers has to be killed.
func (d *docker) release(h *Host) error {
	one := d.daemons[h]
	if one == nil {
		return nil
	}
	delete(d.daemons, h)
	one.networks.Run(context.Background(), "swarm", "leave", "--force") // it may not have joined
	return one.networks.Close()
}

// leave removes a worker. The managers are the first hosts, and stay.
func (d *docker) leave(ctx context.Context, h *Host) error {
	id := d.ids[h]
	d.hosts = slices.DeleteFunc(d.hosts, func(o *Host) bool { return o == h })
	delete(d.ids, h)
	if id == "" {
		return nil // it has not joined
	}
	_, err := d.daemons[d.hosts[0]].networks.Run(ctx, "node", "rm", "--force", id)
	return err
}

// misses asks a manager, since workers do not know the state of others.
func (d *docker) misses(ctx context.Context, h, other *Host) (bool, error) {
	asked := d.daemons[h]
	if !asked.manager {
		asked = d.daemons[d.hosts[0]]
	}
	out, err := asked.networks.Run(ctx, "node", "ls", "--format", "{{.ID}} {{.Status}}")
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(out) {
		if id, status, _ := strings.Cut(strings.TrimSpace(line), " "); id == d.ids[other] {
			return status != "Ready", nil
		}
	}
	return true, nil
}

func (d *docker) resolver(*Host) netip.AddrPort { return dockerResolver }
