package attacher

import (
	"context"
	"fmt"

	"cleat/bench/named"
)

// onNamed connects containers to a named network, each with a name and a published port.
type onNamed struct {
	bySelf
	network *named.Network
	ports   int // see Config.Ports
	others  int // endpoints before the measured ones
}

func openNamed(ctx context.Context, h *Host) (driver, error) {
	n, err := named.Open(ctx, named.Config{Name: h.cfg.Attacher, Host: h.node, Dir: h.dir, Program: h.cfg.Program})
	if err != nil {
		return nil, err
	}
	return &onNamed{network: n, ports: h.cfg.Ports, others: h.cfg.Endpoints - 1}, nil
}

// Published ports of the host. Those from 32768 on are for outgoing connections
// (ip_local_port_range).
const (
	firstPort = 10000
	portCount = 20000
)

func (d *onNamed) newEndpoint(ctx context.Context, serial int) (endpoint, error) {
	var ports []named.Port
	if d.ports == 0 || serial <= d.ports || serial > d.others {
		ports = []named.Port{{Host: uint16(firstPort + serial%portCount), Container: 80}}
	}
	create := d.network.Create
	if serial <= d.others {
		create = d.network.CreateCompanion
	}
	c, err := create(ctx, fmt.Sprintf("web%d", serial), ports)
	if err != nil {
		return endpoint{}, err
	}
	return endpoint{serial: serial, ns: c.Node.NS, container: c}, nil
}

func (d *onNamed) close() error { return d.network.Close() }

// Processes returns the ids of the processes of a named network's program. Other attachers
// have none.
func (h *Host) Processes() ([]int, error) {
	if d, ok := h.driver.(*onNamed); ok {
		return d.network.Processes()
	}
	return nil, nil
}
