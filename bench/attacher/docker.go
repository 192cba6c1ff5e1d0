package attacher

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"cleat/bench/container"
	"cleat/bench/named"
	"cleat/netns"
)

// docker attaches by `docker network connect`, with a daemon on the host.
type docker struct {
	host     *Host
	networks *container.Networks
	client   []string
	pid      int // of the one container, which all measurements use
}

// Names of the container and of Docker's networks.
const (
	dockerHome      = "home" // the container's first network
	dockerNetwork   = "wire" // the network to which it is connected
	dockerContainer = "web"
)

// dockerAddress is the address that the container gets in each measurement.
const dockerAddress = "198.18.1.2"

func openDocker(ctx context.Context, h *Host) (driver, error) {
	networks, err := container.OpenNetworks(ctx, container.Config{Scratch: h.dir, Self: h.cfg.Program}, h.node)
	if err != nil {
		return nil, err
	}
	d := &docker{host: h, networks: networks}
	if err := d.open(ctx, h.cfg.Link); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare Docker: %w", err), networks.Close())
	}
	return d, nil
}

func (d *docker) open(ctx context.Context, kind string) (err error) {
	if d.client, err = d.networks.Client(); err != nil {
		return err
	}
	create := []string{"network", "create", "--driver", kind, "--subnet", network.String(), "--gateway", gateway.String()}
	if kind == "macvlan" {
		create = append(create, "--opt", "parent="+parent)
	}
	for _, args := range [][]string{{"network", "create", "--subnet", "192.0.2.0/24", dockerHome}, append(create, dockerNetwork)} {
		if _, err := d.networks.Run(ctx, args...); err != nil {
			return err
		}
	}
	d.pid, err = d.networks.Container(ctx, container.ContainerSpec{Name: dockerContainer, Network: dockerHome})
	return err
}

func (d *docker) newEndpoint(_ context.Context, serial int) (endpoint, error) {
	ns, err := netns.OfPID(d.pid)
	return endpoint{serial: serial, ns: ns}, err
}

func (d *docker) attach(ctx context.Context, _ endpoint) (named.Usage, error) {
	return d.run(ctx, "network", "connect", "--ip", dockerAddress, dockerNetwork, dockerContainer)
}

func (d *docker) detach(ctx context.Context, _ endpoint) (named.Usage, error) {
	return d.run(ctx, "network", "disconnect", dockerNetwork, dockerContainer)
}

func (d *docker) run(ctx context.Context, args ...string) (named.Usage, error) {
	return d.host.run(ctx, command{args: append(slices.Clone(d.client), args...)})
}

func (d *docker) removed() error { return nil }
func (d *docker) close() error   { return d.networks.Close() }
