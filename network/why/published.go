package why

import (
	"context"
	"fmt"
	"net/netip"

	"cleat/internal/columns"
	"cleat/network/named"
	"cleat/packet"
)

// publication is a container to which a port of the host is published.
type publication struct {
	endpoint *named.Endpoint
	port     named.Port
	at       *machine
	to       netip.AddrPort
}

// protocolName returns the name of the question's protocol in a named.Port.
func (d Destination) protocolName() string {
	if d.Protocol == packet.UDP {
		return "udp"
	}
	return "tcp"
}

// publishes returns the endpoint that publishes the question's port of the host for which
// covers returns true; nil if there is none.
func (v *investigation) publishes(covers func(named.Port) bool) (*named.Endpoint, named.Port) {
	d := v.q.To
	for _, e := range v.endpoints {
		for _, p := range e.Wanted.Ports {
			if d.Port != 0 && p.Protocol == d.protocolName() && p.HostPort <= d.Port && d.Port-p.HostPort < p.Count && covers(p) {
				return e, p
			}
		}
	}
	return nil, named.Port{}
}

// publication returns the container to which the question's port is published at an address of
// the host; nil if there is none.
func (v *investigation) publication(ctx context.Context, a netip.Addr) *publication {
	e, p := v.publishes(func(p named.Port) bool { return publishedAt(p, a) })
	if e == nil {
		return nil
	}
	for _, to := range e.Addresses {
		if to.Is4() == a.Is4() {
			return &publication{e, p, v.machineOf(ctx, e), netip.AddrPortFrom(to, p.Port+v.q.To.Port-p.HostPort)}
		}
	}
	return nil
}

// publishedAt reports whether a port is published at an address of the host.
func publishedAt(p named.Port, a netip.Addr) bool {
	switch {
	case !p.HostAddr.IsValid():
		return true
	case p.HostAddr.IsUnspecified():
		return p.HostAddr.Is4() == a.Is4()
	}
	return p.HostAddr == a
}

// checkPublished says where a port of the host leads.
func (v *investigation) checkPublished(context.Context) {
	if v.q.To.Port == 0 {
		return
	}
	for _, t := range v.targets {
		switch {
		case t.at != v.host:
		case t.published != nil:
			v.checkPublication(t)
		default:
			v.checkUnpublished(t)
		}
	}
}

func (v *investigation) checkPublication(t *target) {
	p := t.published
	text := fmt.Sprintf("port %s of the host is published to %s on %s", v.q.To.portText(), p.at.label, p.to)
	if p.port.BypassFirewall {
		text += ", past the host's input rules"
	}
	if p.at.ns == nil {
		v.bad(checkPublished, finding{cause: NotRunning, about: t, explains: failure, fact: text + ", which does not run", try: p.at.start(),
			because: fmt.Sprintf("port %s of the host is published to %s, which does not run", v.q.To.portText(), p.at.label)})
		return
	}
	if f := v.linkFault(p.at, p.endpoint); f != nil {
		f.about = t
		v.bad(checkPublished, *f)
		return
	}
	v.ok(checkPublished, "%s", text)
}

// checkUnpublished says that a port of the host is not published, or only at other addresses.
func (v *investigation) checkUnpublished(t *target) {
	e, p := v.publishes(func(named.Port) bool { return true })
	if e == nil {
		return
	}
	at := p.HostAddr.String()
	f := finding{cause: NotPublished, about: t, explains: failure,
		because: fmt.Sprintf("port %s of the host is published at %s only, not at %s", v.q.To.portText(), at, t.addr),
		try:     fmt.Sprintf("cleat net publish %s %s", columns.Word(e.Container.ShortName()), named.Port{Protocol: p.Protocol, HostAddr: t.addr, HostPort: v.q.To.Port, Port: p.Port + v.q.To.Port - p.HostPort, Count: 1})}
	if p.HostAddr.IsLoopback() {
		f.because = fmt.Sprintf("port %s of the host is published at %s only, for the host's own programs", v.q.To.portText(), at)
	}
	v.bad(checkPublished, f)
}
