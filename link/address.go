package link

import (
	"net"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
)

// MAC is a 48-bit Ethernet address. The zero MAC means no address.
type MAC [6]byte

// ParseMAC parses an address such as 02:00:5e:10:00:01.
func ParseMAC(s string) (MAC, error) {
	hw, err := net.ParseMAC(s)
	if err != nil || len(hw) != 6 {
		return MAC{}, paramError("link", "mac", s, "six hexadecimal bytes, e.g. 02:00:5e:10:00:01")
	}
	return MAC(hw), nil
}

func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// MarshalText returns String, or nothing for the zero MAC.
func (m MAC) MarshalText() ([]byte, error) {
	if m == (MAC{}) {
		return nil, nil
	}
	return []byte(m.String()), nil
}

// UnmarshalText parses the output of MarshalText.
func (m *MAC) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*m = MAC{}
		return nil
	}
	got, err := ParseMAC(string(b))
	*m = got
	return err
}

// nameRule describes the kernel's rule for device names in messages.
const nameRule = "1…15 bytes without '/', ':' or white space"

// validName reports whether the kernel accepts a device name (dev_valid_name,
// net/core/dev.c).
func validName(name string) bool {
	return name != "" && len(name) < unix.IFNAMSIZ && name != "." && name != ".." && !strings.ContainsAny(name, "/: \t\n\v\f\r")
}

// address is an IP address of one family. A parameter that can be of either
// family has two attributes, and so two fields.
type address struct {
	p           *netip.Addr
	family      int  // 4 or 6
	fixedFamily bool // addresses of the other family are invalid
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

// decode ignores the unspecified address, which the kernel reports for no address.
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

// hardware is a unicast Ethernet address.
type hardware struct{ p *MAC }

func (v hardware) isZero() bool                     { return *v.p == MAC{} }
func (v hardware) valid() bool                      { return v.p[0]&1 == 0 }
func (v hardware) text() string                     { return v.p.String() }
func (v hardware) encode(linkNames) ([]byte, error) { return v.p[:], nil }

func (v hardware) allowed() string {
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

// device is the name of another link. Its attribute holds the interface index.
type device struct {
	p        *string
	required bool
}

// parent is the name of a link's parent (IFLA_LINK).
type parent struct{ device }

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
