package usernettest

import (
	"errors"
	"net/netip"

	"cleat/lab"
	"cleat/link"

	"github.com/vishvananda/netlink"
)

// changeCases change the host's network under a running data path.
func changeCases() []Case {
	return families(func(f Family) Case {
		return Case{Name: "change/host-address", Alone: true, Check: func(x *T, s *Env) {
			server, to := x.udpServer(s, Out, f)
			go echoUDP(server)
			c, err := x.dial(s.Container, "udp", to)
			x.Must(err)
			x.Must(x.echoed(c, 100))
			in, out := x.pair(s, Out, f)
			x.Must(exchange(in, out))

			bits := map[Family]int{V4: 24, V6: 64}[f]
			x.Must(replaceAddress(s.Host, netip.PrefixFrom(HostAddr(f), bits), netip.PrefixFrom(byFamily(f, "192.0.2.3", "2001:db8:1::3"), bits)))
			x.Must(addRoute(s.Host, netip.Prefix{}, OutsideAddr(f), 0))

			in, out = x.pair(s, Out, f)
			x.Must(exchange(in, out))
			c, err = x.dial(s.Container, "udp", to)
			x.Must(err)
			x.Must(x.echoed(c, 100))
		}}
	})
}

// replaceAddress replaces an address of the uplink.
func replaceAddress(n *lab.Node, from, to netip.Prefix) error {
	h, err := link.Handle(n.NS)
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := h.LinkByName(uplink)
	if err != nil {
		return err
	}
	return errors.Join(h.AddrDel(l, &netlink.Addr{IPNet: ipNet(from)}), n.Address(uplink, to))
}
