package wiring

import (
	"errors"
	"fmt"

	"cleat/bench/spanned"
	"cleat/link"
)

// spannedNetwork makes two hosts of a network that spans hosts. The clients are on the first one, the servers on the
// second one.
func spannedNetwork(nw *Network) error {
	ends, err := nw.underlay()
	if err != nil {
		return err
	}
	c, err := spanned.Open(spanned.Config{Name: nw.cfg.Network, Dataplane: nw.cfg.Dataplane, Datapath: nw.cfg.Datapath, Dir: nw.dir, Program: nw.cfg.Program})
	if err != nil {
		return err
	}
	nw.cleanups = append(nw.cleanups, c.Close)
	var hosts []*spanned.Host
	for _, end := range ends {
		// As on a machine where nothing has asked for it.
		if err := link.SetBridgeNetfilter(end.host.NS, false); err != nil && !errors.As(err, new(*link.Lack)) {
			return err
		}
		h, err := c.Add(nw.ctx, end.host, fmt.Sprintf("node%d", end.number), end.local)
		if err != nil {
			return err
		}
		hosts = append(hosts, h)
	}
	for i := range nw.cfg.Pairs {
		client, err := hosts[0].Run(nw.ctx, fmt.Sprintf("client%d", i))
		if err != nil {
			return err
		}
		server, err := hosts[1].Run(nw.ctx, fmt.Sprintf("server%d", i))
		if err != nil {
			return err
		}
		nw.containers = append(nw.containers, client.Node, server.Node)
		nw.addPair(client.Node, inside, server.Node, endpoint(anyAddr, i), endpoint(server.Addr, i))
	}
	for _, p := range nw.Pairs {
		if err := connectPair(nw.ctx, p); err != nil {
			return err
		}
	}
	return nil
}
