package pasta

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"cleat/compat/portspec"
	"cleat/sandbox"
)

// Host describes the host, as far as a plan depends on it. The zero Host has no network.
type Host struct {
	Link4, Link6 Template
	Nameservers  []netip.Addr   // of /etc/resolv.conf, in order
	Search       []string       // its search domains
	Ephemeral    portspec.Ports // for IPv4 and IPv6
}

// Template is the link that a namespace resembles in one family. The zero Template stands
// for none.
type Template struct {
	Link    string
	Addr    netip.Prefix // its first global address
	Gateway netip.Addr   // of its default route; invalid if there is none
}

// Plan is everything that options and host determine.
type Plan struct {
	Config    sandbox.Config
	Namespace sandbox.Namespace // to attach to; zero: create one for Command
	Command   []string          // empty means a shell
	Notices   []string          // to be logged, unless quiet
}

// Addresses that are used if the host has none.
var (
	localAddr4    = netip.MustParsePrefix("169.254.2.1/16")
	localGateway4 = netip.MustParseAddr("169.254.2.2")
	localGateway6 = netip.MustParseAddr("fe80::1")
)

// smallestMTU6 is the minimum MTU of IPv6 (RFC 8200 section 5).
const smallestMTU6 = 1280

// Plan translates the options for a host. It is a pure function.
func (o Options) Plan(h Host) (Plan, error) {
	p := planner{o: o, h: h}
	p.Notices = slices.Clone(o.Notices)
	p.Command = o.Command
	p.addresses()
	p.mappings()
	p.resolver()
	p.ethernet()
	if o.Attaches() {
		p.Namespace = sandbox.Namespace{PID: o.PID, Path: o.NetNS, UserNSPath: o.UserNS, SkipUserNS: o.NetNSOnly, KeepRunning: o.NoNetNSQuit}
	}
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

type planner struct {
	Plan
	o Options
	h Host
}

// addresses decides on families, the device and its addresses.
func (p *planner) addresses() {
	c, o := &p.Config, p.o
	c.Interface = cmp.Or(o.Interface, p.h.Link4.Link, p.h.Link6.Link, "tap0")
	c.MTU = o.MTU
	if o.KeepMTU {
		c.MTU = 1500 // the kernel's default for a new TAP
	}
	c.NoConfigure = !o.Configure
	c.MapRoot = true
	// Podman creates bridges and rules inside that would keep most connections from the
	// splice tier.
	c.Tier = sandbox.TierTUN
	c.Device = sandbox.DeviceTAP
	c.NoIPv4 = o.OnlyIPv6
	c.NoIPv6 = o.OnlyIPv4 || !o.OnlyIPv6 && !p.h.Link6.Addr.IsValid() && !o.Addr6.IsValid()
	if c.MTU != 0 && c.MTU < smallestMTU6 && !c.NoIPv6 && !c.NoIPv4 {
		p.notice("MTU %d is too small for IPv6 (minimum %d): IPv6 is disabled", c.MTU, smallestMTU6)
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

// resemble returns address and gateway: the requested ones, else the host's, else local
// ones. A gateway whose address the guest has itself could not be reached by the guest, so a
// local one stands in for it.
func resemble(t Template, addr netip.Prefix, gateway netip.Addr, localAddr netip.Prefix, localGateway netip.Addr) (netip.Prefix, netip.Addr) {
	if gateway = cmp.Or(gateway, t.Gateway); !t.Addr.IsValid() {
		gateway = cmp.Or(gateway, localGateway)
	}
	if addr = cmp.Or(addr, t.Addr, localAddr); gateway.IsValid() && gateway == addr.Addr() {
		if gateway = localGateway; gateway == addr.Addr() {
			gateway = gateway.Next()
		}
	}
	return addr, gateway
}

// mappings decides which addresses lead to the host.
func (p *planner) mappings() {
	c, o := &p.Config, p.o
	family := func(four bool, own, gateway netip.Addr) (loopback netip.Addr) {
		if loopback = ofFamily(o.MapLoopback, four); !loopback.IsValid() && !o.NoMapGateway {
			loopback = gateway
		}
		// The guest has a copy of the host's own address.
		if a := ofFamily(o.MapGuest, four); a.IsValid() && own.IsValid() {
			c.Mappings = append(c.Mappings, sandbox.Mapping{Guest: a, Host: own})
		}
		// The gateway that the guest sees is a machine beside the host, unless its address
		// leads to the host's loopback.
		if gateway.IsValid() && gateway != loopback && !gateway.IsLinkLocalUnicast() {
			c.Mappings = append(c.Mappings, sandbox.Mapping{Guest: gateway, Host: gateway})
		}
		return loopback
	}
	if !c.NoIPv4 {
		c.HostLoopback4 = family(true, c.Addr4.Addr(), c.Gateway4)
	}
	if !c.NoIPv6 {
		c.HostLoopback6 = family(false, c.Addr6.Addr(), c.Gateway6)
	}
}

// resolver decides which addresses answer DNS. The guest's resolv.conf is left to the
// caller of pasta.
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
			listen(loopback) // otherwise the mapping would hide the resolver
		case n.IsLinkLocalUnicast():
			listen(n.WithZone("")) // such addresses are not reachable otherwise
		}
	}
	c.DNS.Off = len(c.DNS.Listen) == 0
	if !c.DNS.Off {
		for _, a := range p.o.DNSHost {
			c.DNS.Servers = append(c.DNS.Servers, netip.AddrPortFrom(a, 53))
		}
	}
}

// ethernet decides on MAC addresses and on what the namespace is told when it configures
// itself.
func (p *planner) ethernet() {
	o := p.o
	e := sandbox.Ethernet{
		MAC: o.MAC, GatewayMAC: o.GatewayMAC,
		NoDHCP: o.NoDHCP, NoDHCPv6: o.NoDHCPv6, NoRA: o.NoRA, NoNDP: o.NoNDP || o.NoICMP,
		DNS: []netip.Addr{}, Hostname: o.Hostname, FQDN: o.FQDN,
	}
	if o.AnnounceDNS {
		e.DNS = append(e.DNS, p.nameservers()...)
	}
	if o.AnnounceSearch {
		e.Search = o.Search
		if o.Search == nil {
			e.Search = p.h.Search
		}
	}
	p.Config.Ethernet = e
}

// nameservers returns the resolvers that the namespace should use: the given ones, else those
// that stand for the host's.
func (p *planner) nameservers() (all []netip.Addr) {
	switch {
	case p.o.DNS != nil:
		return p.o.DNS
	case len(p.o.DNSForward) > 0:
		return p.o.DNSForward
	}
	for _, n := range p.h.Nameservers {
		switch {
		case n.IsLoopback() && n.Is4():
			n = p.Config.HostLoopback4
		case n.IsLoopback():
			n = p.Config.HostLoopback6
		}
		if n.IsValid() && !slices.Contains(all, n.WithZone("")) {
			all = append(all, n.WithZone(""))
		}
	}
	return all
}

func (p *planner) notice(format string, args ...any) {
	p.Notices = append(p.Notices, fmt.Sprintf(format, args...))
}

// without is the policy of --no-tcp, --no-udp and --no-icmp.
type without struct{ tcp, udp, icmp bool }

// Judge drops flows of disabled protocols.
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
