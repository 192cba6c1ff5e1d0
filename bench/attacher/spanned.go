package attacher

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"cleat/bench/spanned"
	"cleat/lab"
	"cleat/link"
)

// onSpanned connects containers to a network that spans two hosts. The node outside begins it, so that the host that
// attaches has what it needs from another one, as most hosts do.
type onSpanned struct {
	bySelf
	cluster *spanned.Cluster
	host    *spanned.Host
}

func openSpanned(ctx context.Context, h *Host) (driver, error) {
	c, err := spanned.Open(spanned.Config{Name: h.cfg.Attacher, Dataplane: h.cfg.Dataplane, Dir: h.dir, Program: h.cfg.Program})
	if err != nil {
		return nil, err
	}
	d := &onSpanned{cluster: c}
	for i, n := range []*lab.Node{h.outside, h.node} {
		if d.host, err = d.addHost(ctx, n, i+1); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return d, nil
}

func (d *onSpanned) addHost(ctx context.Context, n *lab.Node, number int) (*spanned.Host, error) {
	addr := netip.AddrFrom4([4]byte{198, 19, 0, byte(number)})
	if err := n.Address(parent, netip.PrefixFrom(addr, 24)); err != nil {
		return nil, err
	}
	// As on a machine where nothing has asked for it.
	if err := link.SetBridgeNetfilter(n.NS, false); err != nil && !errors.As(err, new(*link.Lack)) {
		return nil, err
	}
	return d.cluster.Add(ctx, n, fmt.Sprintf("node%d", number), addr)
}

func (d *onSpanned) newEndpoint(ctx context.Context, serial int) (endpoint, error) {
	c, err := d.host.Create(ctx, fmt.Sprintf("web%d", serial))
	if err != nil {
		return endpoint{}, err
	}
	return endpoint{serial: serial, ns: c.Node.NS, container: c}, nil
}

func (d *onSpanned) close() error { return d.cluster.Close() }
