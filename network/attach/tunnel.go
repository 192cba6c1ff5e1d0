package attach

import (
	"fmt"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
)

// tunnel plans a VXLAN or Geneve link whose outer packets are sent by the host.
func (p *planner) tunnel() error {
	params, set := p.params(), p.spec.Params
	if p.spec.Parent != "" {
		l, err := p.parent()
		if err != nil {
			return err
		}
		if limit := l.Attrs().MTU - overhead(set["group"]+set["remote"]); p.spec.MTU > limit {
			return &SpecError{Param: "mtu", Value: strconv.Itoa(p.spec.MTU), Reason: fmt.Sprintf("is more than fits into packets of %s, %d", p.spec.Parent, limit)}
		}
		params["parent"] = p.spec.Parent
	} else if mtu := p.tunnelMTU(); mtu != 0 {
		switch {
		case p.spec.MTU == 0:
			params["mtu"] = strconv.Itoa(mtu)
		case p.spec.MTU > mtu:
			p.note("MTU %d is more than fits into packets to %s, %d; larger packets are fragmented or lost", p.spec.MTU, set["remote"], mtu)
		}
	}
	if set["remote"] == "" && set["group"] == "" && set["external"] == "" {
		p.note("the tunnel has no other end yet; set one with --set remote=ADDRESS, or with `bridge fdb append` in the container")
	}
	p.add(MakeLink{Kind: p.spec.Kind, Name: p.spec.Name, Params: params, MAC: p.mac(), Rename: p.needsTempName()})
	return nil
}

// overhead returns how many bytes VXLAN and Geneve add to a packet to this address: outer IP, UDP
// and tunnel headers and the inner Ethernet header (RFC 7348 section 5, RFC 8926 section 3). Any
// other text counts as IPv4.
func overhead(to string) int {
	if a, err := netip.ParseAddr(to); err == nil && a.Is6() {
		return 40 + 8 + 8 + 14
	}
	return 20 + 8 + 8 + 14
}

// tunnelMTU returns the MTU that fits into packets to the other end; 0 if it is unknown.
func (p *planner) tunnelMTU() int {
	remote, err := netip.ParseAddr(p.spec.Params["remote"])
	if err != nil {
		return 0
	}
	routes, err := p.host.RouteGet(remote.AsSlice())
	if err != nil || len(routes) == 0 {
		return 0
	}
	l, err := p.host.LinkByIndex(routes[0].LinkIndex)
	if err != nil || l.Attrs().RawFlags&unix.IFF_LOOPBACK != 0 {
		return 0
	}
	return l.Attrs().MTU - overhead(remote.String())
}
