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
	return openDaemon(ctx, cfg, nil)
}

// openCleatDocker makes a network of cleat by its plug-ins for Docker.
func openCleatDocker(ctx context.Context, cfg Config) (driver, error) {
	const plugin = "cleat"
	self, err := os.Executable() // other programs start it, whose /proc/self/exe is theirs
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	return openDaemon(ctx, cfg, func(networks *container.Networks) error {
		return networks.StartPlugin(ctx, plugin, []string{cfg.stateDir()}, []string{cmp.Or(cfg.Program, self), "keep", "--docker-socket", "/run/docker/plugins/" + plugin + ".sock"})
	}, "--driver", plugin, "--ipam-driver", plugin)
}

// openDaemon starts a daemon, then what prepare starts, and makes the network with further arguments of
// docker-network-create(1).
func openDaemon(ctx context.Context, cfg Config, prepare func(*container.Networks) error, args ...string) (driver, error) {
	networks, err := container.OpenNetworks(ctx, container.Config{Scratch: cfg.Dir, Self: cfg.Program}, cfg.Host)
	if err != nil {
		return nil, err
	}
	d := &docker{cfg: cfg, networks: networks}
	d.client, err = networks.Client()
	if err == nil && prepare != nil {
		err = prepare(networks)
	}
	if err == nil {
		err = networks.CreateNetwork(ctx, networkName, append(args, "--subnet", Subnet.String(), "--gateway", gateway.String())...)
	}
	return d, err
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
	return d.networks.Close()
}
