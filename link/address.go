package link

import "net/netip"

// address is an IP address of one family; the two families of one parameter
// are two attributes.
type address struct {
	p           *netip.Addr
	family      int  // 4 or 6
	fixedFamily bool // the parameter can't be of the other family
}

func ip4(p *netip.Addr) address     { return address{p: p, family: 4} }
func ip4Only(p *netip.Addr) address { return address{p: p, family: 4, fixedFamily: true} }
func ip6(p *netip.Addr) address     { return address{p: p, family: 6} }

func (v address) isZero() bool {
	return !v.p.IsValid() || v.p.Is4() != (v.family == 4)
}

func (v address) valid() bool {
	return !v.p.IsValid() || v.p.Zone() == "" && (!v.fixedFamily || v.p.Is4() == (v.family == 4))
}

func (v address) allowed() string {
	if v.fixedFamily {
		return "an IPv4 address, e.g. 192.0.2.1"
	}
	return "an IP address, e.g. 192.0.2.1 or 2001:db8::1"
}

func (v address) text() string {
	if !v.p.IsValid() {
		return ""
	}
	return v.p.String()
}

func (v address) setText(s string) bool {
	a, err := netip.ParseAddr(s)
	*v.p = a.Unmap()
	return err == nil && v.valid()
}

func (v address) encode(linkNames) ([]byte, error) { return v.p.AsSlice(), nil }

// decode takes the unspecified address for "none given", as the kernel does.
func (v address) decode(b []byte, _ linkNames) error {
	a, ok := netip.AddrFromSlice(b)
	if !ok {
		return errLength
	}
	if !a.IsUnspecified() {
		*v.p = a
	}
	return nil
}

// hardware is an Ethernet address; group is for those that must be multicast.
type hardware struct {
	p     *MAC
	group bool
}

func (v hardware) isZero() bool                     { return *v.p == MAC{} }
func (v hardware) valid() bool                      { return v.isZero() || v.p[0]&1 != 0 == v.group }
func (v hardware) text() string                     { return v.p.String() }
func (v hardware) encode(linkNames) ([]byte, error) { return v.p[:], nil }

func (v hardware) allowed() string {
	if v.group {
		return "a group address of six hexadecimal bytes, e.g. 01:80:c2:00:00:00"
	}
	return "a unicast address of six hexadecimal bytes, e.g. 02:00:5e:10:00:01"
}

func (v hardware) setText(s string) bool {
	m, err := ParseMAC(s)
	*v.p = m
	return err == nil && v.valid()
}

func (v hardware) decode(b []byte, _ linkNames) error {
	if len(b) != len(v.p) {
		return errLength
	}
	*v.p = MAC(b)
	return nil
}

// device is another link, named by people and numbered by the kernel.
type device struct {
	p        *string
	required bool
}

func (v device) isZero() bool    { return *v.p == "" }
func (v device) valid() bool     { return validName(*v.p) || *v.p == "" && !v.required }
func (v device) allowed() string { return nameRule }
func (v device) text() string    { return *v.p }

func (v device) setText(s string) bool {
	*v.p = s
	return v.valid()
}

func (v device) encode(n linkNames) ([]byte, error) {
	i, err := n.index(*v.p)
	return putUint(uint32(i), 4, false), err
}

func (v device) decode(b []byte, n linkNames) error {
	i, err := getUint(b, 4, false)
	if err != nil || i == 0 {
		return err
	}
	*v.p, err = n.name(int(i))
	return err
}
