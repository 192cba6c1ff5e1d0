package wiring

import (
	"net/netip"

	"cleat/lab"
	"cleat/link"
)

// wireguardPort is the first pair's; pair i uses wireguardPort+i.
const wireguardPort = 51820

// wireguard gives each pair a tunnel with keys of its own.
func wireguard(nw *Network) error {
	type keys struct{ client, server link.WireGuardKey }
	all := map[int]keys{}
	return nw.tunnels(func(pair int, end tunnelEnd, c *lab.Node, addr netip.Addr) error {
		k, ok := all[pair]
		if !ok {
			var err error
			if k.client, err = link.NewWireGuardKey(); err != nil {
				return err
			}
			if k.server, err = link.NewWireGuardKey(); err != nil {
				return err
			}
			all[pair] = k
		}
		own, peer := k.client, k.server
		if end.local == hostAddr(2) {
			own, peer = k.server, k.client
		}
		if _, err := link.Create(end.host.NS, link.WireGuardSpec{
			Attrs: link.Attrs{Name: inside}, PrivateKey: own, ListenPort: wireguardPort + pair,
			Peers: link.ListOf(link.WireGuardPeer{
				PublicKey:  peer.Public(),
				Endpoint:   netip.AddrPortFrom(end.remote, uint16(wireguardPort+pair)),
				AllowedIPs: link.ListOf(netip.PrefixFrom(other(addr), 32)),
			}),
		}, link.Target{NS: c.NS}); err != nil {
			return err
		}
		return c.Address(inside, inNet(addr))
	})
}
