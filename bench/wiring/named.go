package wiring

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"

	"cleat/bench/named"
	"cleat/lab"
	"cleat/link"
)

// otherPorts is the first of the published ports that carry no traffic.
const otherPorts = 10000

// namedNetwork makes a host with a named network. The client of each pair is another
// container on it, which dials the server's own address, or that one, the host or an outside
// node dials the port that the host publishes; or a container dials a server outside.
func namedNetwork(nw *Network) error {
	host, outside, err := nw.hosts()
	if err != nil {
		return err
	}
	if err := addRoute(host, netip.Prefix{}, hostAddr(2), ""); err != nil {
		return err
	}
	// As on a machine where nothing has asked for it. An engine may set it again.
	if err := link.SetBridgeNetfilter(host.NS, false); err != nil && !errors.As(err, new(*link.Lack)) {
		return err
	}
	n, err := named.Open(nw.ctx, named.Config{Name: nw.cfg.Network, Host: host, Dir: nw.dir, Program: nw.cfg.Program, Datapath: nw.cfg.Datapath})
	if err != nil {
		return err
	}
	nw.cleanups = append(nw.cleanups, n.Close)
	if others := nw.cfg.Ports - nw.cfg.Pairs; others > 0 {
		if _, err := n.Run(nw.ctx, "others", []named.Port{{Host: otherPorts, Container: otherPorts, Count: others}}); err != nil {
			return err
		}
	}
	for i := range nw.cfg.Pairs {
		if err := nw.addNamedPair(n, host, outside, i); err != nil {
			return err
		}
	}
	return nil
}

func (nw *Network) addNamedPair(n *named.Network, host, outside *lab.Node, pair int) error {
	peer := cmp.Or(nw.cfg.Peer, PeerContainer)
	one := func(name string, ports ...named.Port) (*named.Container, error) {
		return n.Run(nw.ctx, fmt.Sprintf("%s%d", name, pair), ports)
	}
	client, device, to := outside, uplink, hostAddr(1) // PeerOutside
	switch peer {
	case PeerHostAddress:
		client, device = host, "lo"
	case PeerHostLoopback:
		client, device, to = host, "lo", localhost
	case PeerContainer, PeerHairpin, PeerMasquerade:
		c, err := one("client")
		if err != nil {
			return err
		}
		client, device = c.Node, inside
	}
	if peer == PeerMasquerade {
		to = hostAddr(2)
		nw.addPair(client, device, outside, endpoint(to, pair), endpoint(to, pair))
		return nil
	}
	var ports []named.Port
	if peer != PeerContainer {
		for _, udp := range []bool{false, true} {
			ports = append(ports, named.Port{Host: port(pair), Container: port(pair), UDP: udp})
		}
	}
	server, err := one("server", ports...)
	if err != nil {
		return err
	}
	if peer == PeerContainer {
		if to, err = server.Address(); err != nil {
			return err
		}
	}
	nw.addPair(client, device, server.Node, endpoint(anyAddr, pair), endpoint(to, pair))
	return nil
}
