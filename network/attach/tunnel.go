package attach

import (
	"fmt"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
)

// tunnel is a link whose outer packets are the host's.
func (p *planner) tunnel() error {
	params, set := p.params(), p.spec.Params
	if p.spec.Parent != "" {
		l, err := p.parent()
		if err != nil {
			return err
		}
		if most := l.Attrs().MTU - overhead(set["group"]+set["remote"]); p.spec.MTU > most {
			return &SpecError{Param: "mtu", Value: strconv.Itoa(p.spec.MTU), Reason: fmt.Sprintf("is more than fits into packets of %s, %d", p.spec.Parent, most)}
		}
		params["parent"] = p.spec.Parent
	} else if mtu := p.tunnelMTU(); mtu != 0 {
		switch {
		case p.spec.MTU == 0:
			params["mtu"] = strconv.Itoa(mtu)
		case p.spec.MTU > mtu:
			p.note("MTU %d is more than fits into the packets to %s, %d: longer ones travel in pieces, or not at all", p.spec.MTU, set["remote"], mtu)
		}
	}
	if set["remote"] == "" && set["group"] == "" && set["external"] == "" {
		p.note("it has no other end: give one with --set remote=ADDRESS, or tell it with `bridge fdb append` in the container")
	}
	p.add(MakeLink{Kind: p.spec.Kind, Name: p.spec.Name, Params: params, MAC: p.mac(), Rename: p.needsTempName()})
	return nil
}

// What VXLAN and Geneve put around a frame, in bytes: outer IP, UDP and tunnel
// headers and the inner Ethernet header (RFC 7348 section 5, RFC 8926 section 3).
const (
	overheadIPv4 = 20 + 8 + 8 + 14
	overheadIPv6 = 40 + 8 + 8 + 14
)

// overhead is what is around a frame to the other end at this address; any other text
// counts as IPv4.
func overhead(to string) int {
	if a, err := netip.ParseAddr(to); err == nil && a.Is6() {
		return overheadIPv6
	}
	return overheadIPv4
}

// tunnelMTU is what fits into the packets to the other end; 0 when it can't be
// told.
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
