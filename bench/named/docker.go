package named

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"

	"cleat/bench/container"
	"cleat/lab"
	"cleat/netns"
)

// docker runs a Docker daemon on the host.
type docker struct {
	cfg      Config
	networks *container.Networks
	client   []string
	isolated bool // the network dockerHome exists
	closed   bool
}

// dockerHome is an internal network, on which containers are before they are connected. It
// publishes none of their ports.
const dockerHome = "home"

func openDocker(ctx context.Context, cfg Config) (driver, error) {
	d := &docker{cfg: cfg}
	return d, d.open(ctx, nil)
}

// cleatDocker is a network of cleat with containers of Docker, and companions that cleat connects itself.
type cleatDocker struct {
	*docker
	companions cleat
}

// openCleatDocker makes a network of cleat by its plug-ins for Docker, with further arguments of
// docker-network-create(1).
func openCleatDocker(args ...string) func(context.Context, Config) (driver, error) {
	return func(ctx context.Context, cfg Config) (driver, error) { return newCleatDocker(ctx, cfg, args) }
}

func newCleatDocker(ctx context.Context, cfg Config, args []string) (driver, error) {
	const plugin = "cleat"
	self, err := os.Executable() // other programs start it, whose /proc/self/exe is theirs
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	d := &cleatDocker{&docker{cfg: cfg}, newCleat(cfg)}
	return d, d.open(ctx, func(networks *container.Networks) error {
		return networks.StartPlugin(ctx, plugin, []string{cfg.stateDir()}, []string{cmp.Or(cfg.Program, self), "keep", "--docker-socket", "/run/docker/plugins/" + plugin + ".sock"})
	}, append([]string{"--driver", plugin, "--opt", "cleat.network=" + networkName, "--ipam-driver", plugin}, args...)...)
}

func (d *cleatDocker) create(ctx context.Context, one *Container, connect bool) error {
	if !one.companion {
		return d.docker.create(ctx, one, connect)
	}
	node, err := lab.NewNode(one.Name)
	if err == nil {
		one.Node, one.path = node, node.NS.Path() // the keeper sees the mounts of Docker's lab alone
	}
	return err
}

// driverOf returns the driver of a container.
func (d *cleatDocker) driverOf(one *Container) driver {
	if one.companion {
		return &d.companions
	}
	return d.docker
}

func (d *cleatDocker) connect(ctx context.Context, one *Container) (Usage, error) {
	return d.driverOf(one).connect(ctx, one)
}

func (d *cleatDocker) disconnect(ctx context.Context, one *Container) (Usage, error) {
	return d.driverOf(one).disconnect(ctx, one)
}

func (d *cleatDocker) remove(one *Container) error {
	if one.companion {
		return nil // its node is closed
	}
	return d.docker.remove(one)
}

// open starts a daemon, then what prepare starts, and makes the network with further arguments of
// docker-network-create(1).
func (d *docker) open(ctx context.Context, prepare func(*container.Networks) error, args ...string) (err error) {
	if d.networks, err = container.OpenNetworks(ctx, container.Config{Scratch: d.cfg.Dir, Self: d.cfg.Program}, d.cfg.Host); err != nil {
		return err
	}
	d.client, err = d.networks.Client()
	if err == nil && prepare != nil {
		err = prepare(d.networks)
	}
	if err == nil {
		err = d.networks.CreateNetwork(ctx, networkName, append(args, "--subnet", Subnet.String(), "--gateway", gateway.String())...)
	}
	return err
}

func (d *docker) create(ctx context.Context, one *Container, connect bool) error {
	on := networkName
	if !connect {
		on = dockerHome
	}
	if !connect && !d.isolated {
		if err := d.networks.CreateNetwork(ctx, dockerHome, "--internal", "--subnet", "192.0.2.0/24"); err != nil {
			return err
		}
		d.isolated = true
	}
	pid, err := d.networks.Container(ctx, container.ContainerSpec{Name: one.Name, Network: on, Publish: publish(one.Ports)})
	if err != nil {
		return err
	}
	ns, err := netns.OfPID(pid)
	if err == nil {
		one.Node = &lab.Node{NS: ns}
	}
	return err
}

func (d *docker) connect(ctx context.Context, one *Container) (Usage, error) {
	return d.network(ctx, "connect", one)
}

func (d *docker) disconnect(ctx context.Context, one *Container) (Usage, error) {
	return d.network(ctx, "disconnect", one)
}

func (d *docker) network(ctx context.Context, verb string, one *Container) (Usage, error) {
	args := append(slices.Clone(d.client), "network", verb, networkName, one.Name)
	return Exec(ctx, d.cfg.Host, Command{Args: args, Env: d.cfg.baseEnv()})
}

func (d *docker) remove(one *Container) error {
	if d.closed {
		return nil
	}
	return d.networks.Remove(context.Background(), one.Name)
}

// close removes all containers.
func (d *docker) close() error {
	d.closed = true
	if d.networks == nil {
		return nil
	}
	return d.networks.Close()
}
