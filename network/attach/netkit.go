package attach

// netkit plans a netkit pair. In mode l2 it carries frames, and its other end can be a port of
// a bridge; in mode l3 it carries packets, which the host routes.
func (p *planner) netkit() error {
	if p.spec.Parent != "" {
		mtu, err := p.useBridge()
		if err != nil {
			return err
		}
		p.pair("netkit", mtu, "mode", "l2")
		p.add(Port{Link: p.peer, Bridge: p.spec.Parent})
		return nil
	}
	if p.mode == "l2" {
		p.pair("netkit", p.spec.MTU, "mode", "l2")
	} else {
		p.peer = p.hostDevice("veth")
		p.add(MakeLink{Kind: "netkit", Name: p.spec.Name, Params: p.params("mode", "l3"), Peer: p.peer})
	}
	p.add(Port{Link: p.peer})
	for _, ip := range p.spec.Addresses {
		p.add(ShimRoute{Shim: p.peer, To: ip.Addr()})
	}
	return nil
}
