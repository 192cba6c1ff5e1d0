package firewall

import (
	"net/netip"

	"cleat/packet"

	"golang.org/x/sys/unix"
)

// contents are the elements of all sets of both tables.
type contents map[place]elements

// place is a set of the table of a family.
type place struct {
	family byte
	set    string
}

// contents returns the elements that express a State.
func (s State) contents() (contents, error) {
	if err := s.validate(); err != nil {
		return nil, err
	}
	c := contents{}
	for _, n := range s.Networks {
		for _, f := range families {
			if err := c.addNetwork(f, n); err != nil {
				return nil, err
			}
		}
	}
	for _, p := range s.Ports {
		if err := c.addPort(p); err != nil {
			return nil, err
		}
	}
	for _, w := range s.Flows {
		set := setFlows
		if w.Inbound {
			set = setInbound
		}
		if !c.add(familyOf(w.FromFirst), set, w.element(), w.verdict()) {
			return nil, invalid("flow from %s to %s is there twice", w.FromFirst, w.ToFirst)
		}
	}
	for _, r := range s.Resolvers {
		for _, p := range []packet.Protocol{packet.UDP, packet.TCP} {
			e := element{key: addrKey(r.Client) + addrKey(r.Asked) + protocolKey(uint8(p)) + portKey(dnsPort)}
			if !c.add(familyOf(r.Client), setResolvers, e, addrKey(r.Server)+portKey(dnsPort)) {
				return nil, invalid("queries of %s to %s are answered twice", r.Client, r.Asked)
			}
		}
	}
	for _, r := range s.Remotes {
		device := deviceKey(r.Device)
		for _, f := range families {
			c.add(f, setWays, element{key: device}, "") // once for all Remotes of the device
			if r.Only {
				c.add(f, setOverlays, element{key: device}, "")
			}
		}
		for _, a := range r.Hosts {
			c.add(familyOf(a), setHosts, element{key: addrKey(a)}, "") // once for all devices
		}
		for _, p := range r.Prefixes {
			e := element{key: device + addrKey(p.Masked().Addr()), end: device + addrKey(lastAddr(p))}
			if !c.add(familyOf(p.Addr()), setRemote, e, "") {
				return nil, invalid("device %s leads to prefix %s twice", r.Device, p)
			}
		}
	}
	for _, r := range s.Relays {
		c.add(familyOf(r.To), setRelays, element{key: addrKey(r.To)}, addrKey(r.From)) // once for all its ports
	}
	for _, p := range s.Sealed {
		e := element{key: protocolKey(0) + addrKey(p.Masked().Addr()), end: protocolKey(255) + addrKey(lastAddr(p))}
		if !c.add(familyOf(p.Addr()), setSealed, e, "") {
			return nil, invalid("prefix %s is sealed twice", p)
		}
	}
	for _, p := range s.Allow {
		f := familyOf(p.From.Addr())
		if !c.add(f, setAllowed, pairElement(p.From, p.To), verdictAccept) {
			return nil, invalid("traffic from %s to %s is allowed twice", p.From, p.To)
		}
	}
	return c, nil
}

func familyOf(a netip.Addr) family {
	if a.Is4() {
		return ipv4
	}
	return ipv6
}

// add adds an element. It reports whether the set did not have it yet.
func (c contents) add(f family, set string, e element, value string) bool {
	at := place{f.id, set}
	if c[at] == nil {
		c[at] = elements{}
	}
	if _, exists := c[at][e]; exists {
		return false
	}
	c[at][e] = value
	return true
}

func (c contents) addNetwork(f family, n Network) error {
	var prefixes []netip.Prefix
	for _, p := range n.Prefixes {
		if f.has(p.Addr()) {
			prefixes = append(prefixes, p.Masked())
		}
	}
	if n.VRF != "" && len(prefixes) > 0 {
		c.add(f, setVRFs, element{key: deviceKey(n.VRF)}, "") // unless another network has
	}
	for _, from := range prefixes {
		for _, to := range prefixes {
			if !c.add(f, setAllowed, pairElement(from, to), verdictAccept) {
				return invalid("prefix %s belongs to two networks", from)
			}
		}
	}
	for _, name := range n.Devices {
		if err := c.addDevice(f, n, name); err != nil {
			return err
		}
	}
	for _, e := range n.Endpoints {
		for _, a := range e.Addrs {
			if !f.has(a) {
				continue
			}
			if !c.add(f, setSources, element{key: deviceKey(e.Device) + addrKey(a)}, "") {
				return invalid("address %s behind device %s belongs to two endpoints", a, e.Device)
			}
			c.addOutbound(f, n, e.Device, a)
		}
	}
	return nil
}

// addOutbound adds what is known of how packets of an endpoint's address leave the host.
func (c contents) addOutbound(f family, n Network, device string, a netip.Addr) {
	if !n.masquerades(f) {
		return
	}
	from := []string{device} // somebody may have taken it out of the VRF
	if n.VRF != "" {
		from = append(from, n.VRF)
		c.add(f, setMasqueradeVRF, element{key: deviceKey(n.VRF) + addrKey(a)}, "")
	}
	for _, name := range from {
		for _, as := range n.Outbound {
			if f.has(as) {
				c.add(f, setOutbound, element{key: deviceKey(name) + addrKey(a)}, addrKey(as))
			}
		}
	}
}

func (n Network) masquerades(f family) bool {
	return f.id == unix.NFPROTO_IPV4 && n.MasqueradeIPv4 || f.id == unix.NFPROTO_IPV6 && n.MasqueradeIPv6
}

// addDevice adds what is known of a network to a device of it.
func (c contents) addDevice(f family, n Network, name string) error {
	e := element{key: deviceKey(name)}
	if !c.add(f, setDevices, e, "") {
		return invalid("device %s belongs to two networks", name)
	}
	c.add(f, setAccess, e, n.HostAccess.verdict())
	if !n.Internal {
		c.add(f, setOpen, e, "")
	}
	if n.masquerades(f) {
		c.add(f, setMasquerade, e, "")
	}
	for _, a := range n.Gateways {
		if f.has(a) {
			c.add(f, setGateways, element{key: e.key + addrKey(a)}, "")
		}
	}
	return nil
}

func (a HostAccess) verdict() string {
	switch a {
	case HostAccessAll:
		return verdictAccept
	case HostAccessGateway:
		return verdictGateway
	}
	return verdictDrop
}

// addPort adds a range of ports, an element for each. Ranges of keys would need a set that is
// several times slower to search and to change (see doc/adr).
func (c contents) addPort(p Port) error {
	f := familyOf(p.To.Addr())
	sets := p.sets()
	address, from := "", ""
	if !p.anywhere() {
		address = addrKey(p.HostAddr)
	}
	if p.VRF != "" {
		from = deviceKey(p.VRF)
	}
	prefix, target := protocolKey(uint8(p.Protocol))+address, addrKey(p.To.Addr())
	for i := range p.count() {
		key := prefix + portKey(p.HostPort+uint16(i))
		value := target + portKey(p.To.Port()+uint16(i))
		if !c.add(f, sets.all, element{key: key}, value) {
			return invalid("publish port %s: port %d is published twice", p, int(p.HostPort)+i)
		}
		if p.bypasses() {
			c.add(f, sets.direct, element{key: key}, value)
		} else {
			c.add(f, sets.judged, element{key: from + key}, "")
		}
	}
	return nil
}

// portSets are the names of the sets that have a port.
type portSets struct {
	all    string
	direct string // if it bypasses the host's firewall
	judged string // otherwise
}

func (p Port) sets() portSets {
	switch vrf, anywhere := p.VRF != "", p.anywhere(); {
	case vrf && anywhere:
		return portSets{all: setPortsAnywhereVRF, judged: setJudgedAnywhereVRF}
	case vrf:
		return portSets{all: setPortsVRF, judged: setJudgedVRF}
	case anywhere:
		return portSets{setPortsAnywhere, setDirectAnywhere, setJudgedAnywhere}
	}
	return portSets{setPorts, setDirect, setJudged}
}

// pairElement returns a range of (source address, destination address).
func pairElement(from, to netip.Prefix) element {
	return element{
		key: addrKey(from.Masked().Addr()) + addrKey(to.Masked().Addr()),
		end: addrKey(lastAddr(from)) + addrKey(lastAddr(to)),
	}
}

// minus returns the elements of c that other does not have with the same value.
func (c contents) minus(other contents) contents {
	rest := contents{}
	for at, all := range c {
		for e, value := range all {
			if old, exists := other[at][e]; !exists || old != value {
				if rest[at] == nil {
					rest[at] = elements{}
				}
				rest[at][e] = value
			}
		}
	}
	return rest
}

// change adds messages to a batch that delete and add elements. The kernel must have those
// that are deleted, and none of the others.
func (b *batch) changeContents(table string, remove, add contents) {
	for _, step := range []struct {
		kind uint16
		from contents
	}{{unix.NFT_MSG_DELSETELEM, remove}, {unix.NFT_MSG_NEWSETELEM, add}} {
		for _, f := range families {
			for _, s := range f.allSets() {
				if len(s.fixed) == 0 {
					b.changeElements(step.kind, table, f, s, step.from[place{f.id, s.name}])
				}
			}
		}
	}
}
