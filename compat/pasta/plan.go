package pasta

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"cleat/compat/portspec"
	"cleat/sandbox"
)

// Host is what a plan takes from the host. The zero Host has no network.
type Host struct {
	Link4, Link6 Template
	Nameservers  []netip.Addr   // of /etc/resolv.conf, in order
	Ephemeral    portspec.Ports // of IPv4 and IPv6
}

// Template is the link that a namespace resembles in one family. The zero
// Template is none.
type Template struct {
	Link    string
	Addr    netip.Prefix // its first global address
	Gateway netip.Addr   // of its default route; invalid: none
}

// Plan is what to do: everything that options and host decide.
type Plan struct {
	Config    sandbox.Config
	Namespace sandbox.Namespace // to attach to; zero: make one for Command
	Command   []string          // empty: a shell
	Notices   []string          // to be told, unless quiet
}

// local addresses stand in where the host has no IPv4.
var (
	localAddr4    = netip.MustParsePrefix("169.254.2.1/16")
	localGateway4 = netip.MustParseAddr("169.254.2.2")
	localGateway6 = netip.MustParseAddr("fe80::1")
)

// smallestMTU6 is IPv6's, RFC 8200 section 5.
const smallestMTU6 = 1280

// Plan says what the options mean on this host. It is a pure function of both.
func (o Options) Plan(h Host) (Plan, error) {
	p := planner{o: o, h: h}
	p.Notices = slices.Clone(o.Notices)
	p.Command = o.Command
	p.addresses()
	p.mappings()
	p.resolver()
	p.namespace()
	p.Config.Outbound4, p.Config.Outbound6 = o.Outbound4, o.Outbound6
	p.Config.OutboundInterface = cmp.Or(o.OutLink4, o.OutLink6)
	if o.NoTCP || o.NoUDP || o.NoICMP {
		p.Config.Policy = without{tcp: o.NoTCP, udp: o.NoUDP, icmp: o.NoICMP}
	}
	if err := p.ports(); err != nil {
		return Plan{}, err
	}
	return p.Plan, nil
}

// planner fills a Plan in.
type planner struct {
	Plan
	o Options
	h Host
}

// addresses decides about families, the device and its addresses.
func (p *planner) addresses() {
	c, o := &p.Config, p.o
	c.Interface = cmp.Or(o.Interface, p.h.Link4.Link, p.h.Link6.Link, "tap0")
	c.MTU = o.MTU
	if o.KeepMTU {
		c.MTU = 1500 // what the kernel gives a new TUN
	}
	c.NoConfigure = !o.Configure
	c.MapRoot = true
	// Podman makes bridges and rules of its own in there, which would keep most
	// connections from the splice tier.
	c.Tier = sandbox.TierTUN
	if c.NoConfigure {
		p.notice("without --config-net the namespace has to set itself up, and there is no DHCP server")
	}
	c.NoIPv4 = o.OnlyIPv6
	c.NoIPv6 = o.OnlyIPv4 || !o.OnlyIPv6 && !p.h.Link6.Addr.IsValid() && !o.Addr6.IsValid()
	if c.MTU != 0 && c.MTU < smallestMTU6 && !c.NoIPv6 && !c.NoIPv4 {
		p.notice("MTU %d is too small for IPv6 (minimum %d): it is off", c.MTU, smallestMTU6)
		c.NoIPv6 = true
	}
	if !c.NoIPv4 {
		c.Addr4, c.Gateway4 = resemble(p.h.Link4, o.Addr4, o.Gateway4, localAddr4, localGateway4)
		if o.Netmask > 0 && !o.Addr4.IsValid() {
			c.Addr4 = netip.PrefixFrom(c.Addr4.Addr(), o.Netmask)
		}
	}
	if !c.NoIPv6 {
		c.Addr6, c.Gateway6 = resemble(p.h.Link6, o.Addr6, o.Gateway6, netip.Prefix{}, localGateway6)
	}
}

// resemble chooses address and gateway: what was asked for, else the host's,
// else local ones.
func resemble(t Template, addr netip.Prefix, gateway netip.Addr, localAddr netip.Prefix, localGateway netip.Addr) (netip.Prefix, netip.Addr) {
	if !addr.IsValid() {
		if addr = t.Addr; !addr.IsValid() {
			addr = localAddr
		}
	}
	if !gateway.IsValid() {
		gateway = t.Gateway
	}
	if !gateway.IsValid() && !t.Addr.IsValid() {
		gateway = localGateway
	}
	return addr, gateway
}

// mappings decides which addresses lead to the host.
func (p *planner) mappings() {
	c, o := &p.Config, p.o
	mapped := func(four bool, gateway netip.Addr) netip.Addr {
		if a := ofFamily(o.MapLoopback, four); a.IsValid() || o.NoMapGateway {
			return a
		}
		return gateway
	}
	if !c.NoIPv4 {
		c.HostLoopback4 = mapped(true, c.Gateway4)
		p.mapGuest(true, c.Addr4.Addr())
		p.reachGateway(c.Gateway4, c.HostLoopback4)
	}
	if !c.NoIPv6 {
		c.HostLoopback6 = mapped(false, c.Gateway6)
		p.mapGuest(false, c.Addr6.Addr())
		p.reachGateway(c.Gateway6, c.HostLoopback6)
	}
}

// reachGateway lets the guest reach the gateway that it sees, which is a machine
// next to the host, where its address does not lead to the host's loopback.
func (p *planner) reachGateway(gateway, loopback netip.Addr) {
	if gateway.IsValid() && gateway != loopback && !gateway.IsLinkLocalUnicast() {
		p.Config.Mappings = append(p.Config.Mappings, sandbox.Mapping{Guest: gateway, Host: gateway})
	}
}

// mapGuest makes one address lead to the host's, of which the guest has a copy.
func (p *planner) mapGuest(four bool, own netip.Addr) {
	if a := ofFamily(p.o.MapGuest, four); a.IsValid() && own.IsValid() {
		p.Config.Mappings = append(p.Config.Mappings, sandbox.Mapping{Guest: a, Host: own})
	}
}

// resolver decides which addresses answer DNS. The guest's resolv.conf is never
// touched: who starts pasta sees to it.
func (p *planner) resolver() {
	c := &p.Config
	c.DNS.KeepResolvConf = true
	listen := func(a netip.Addr) {
		off := a.Is4() && c.NoIPv4 || a.Is6() && c.NoIPv6
		if a.IsValid() && !off && !slices.Contains(c.DNS.Listen, a) {
			c.DNS.Listen = append(c.DNS.Listen, a)
		}
	}
	for _, a := range p.o.DNSForward {
		listen(a)
	}
	for _, n := range p.h.Nameservers {
		forward, loopback := ofFamily(p.o.DNSForward, n.Is4()), c.HostLoopback6
		if n.Is4() {
			loopback = c.HostLoopback4
		}
		switch {
		case !forward.IsValid() && (n.IsLoopback() || n == loopback):
			listen(loopback) // else the mapping would hide the resolver
		case n.IsLinkLocalUnicast():
			listen(n.WithZone("")) // such addresses are out of reach otherwise
		}
	}
	c.DNS.Off = len(c.DNS.Listen) == 0
	if !c.DNS.Off {
		for _, a := range p.o.DNSHost {
			c.DNS.Servers = append(c.DNS.Servers, netip.AddrPortFrom(a, 53))
		}
	}
}

// namespace says what to attach to.
func (p *planner) namespace() {
	o := p.o
	if !o.Attaches() {
		return
	}
	p.Namespace = sandbox.Namespace{PID: o.PID, Path: o.NetNS, UserNSPath: o.UserNS, SkipUserNS: o.NetNSOnly, KeepRunning: o.NoNetNSQuit}
}

func (p *planner) notice(format string, args ...any) {
	p.Notices = append(p.Notices, fmt.Sprintf(format, args...))
}

// without drops what --no-tcp, --no-udp and --no-icmp say.
type without struct{ tcp, udp, icmp bool }

// Judge drops flows of the protocols that are off.
func (w without) Judge(f sandbox.Flow) sandbox.Verdict {
	off := false
	switch f.Protocol {
	case sandbox.TCP:
		off = w.tcp
	case sandbox.UDP:
		off = w.udp
	case sandbox.ICMP, sandbox.ICMPv6:
		off = w.icmp
	}
	if off {
		return sandbox.Verdict{Action: sandbox.Drop}
	}
	return sandbox.Verdict{}
}
