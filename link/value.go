package link

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Toggle is a switch whose default is the kernel's, not "off".
type Toggle string

// The positions of a Toggle.
const (
	Default Toggle = "" // what the kernel does when not told
	On      Toggle = "on"
	Off     Toggle = "off"
)

// toggleOf is On for true and Off for false.
func toggleOf(on bool) Toggle {
	if on {
		return On
	}
	return Off
}

// integer is an int in an attribute of size bytes.
type integer struct {
	p        *int
	min, max int
	size     int
	big      bool // network byte order
	always   bool // the kernel insists on the attribute, zero or not
	none     bool // -1 stands for the kernel's 0, because 0 stands for its default
}

func u8(p *int) integer   { return integer{p: p, max: 1<<8 - 1, size: 1} }
func u16(p *int) integer  { return integer{p: p, max: 1<<16 - 1, size: 2} }
func u32(p *int) integer  { return integer{p: p, max: 1<<32 - 1, size: 4} }
func be16(p *int) integer { return integer{p: p, max: 1<<16 - 1, size: 2, big: true} }
func be32(p *int) integer { return integer{p: p, max: 1<<32 - 1, size: 4, big: true} }

// in narrows the range of values other than the default.
func (v integer) in(low, high int) integer { v.min, v.max = low, high; return v }

// required sends zero too: there is no default.
func (v integer) required() integer { v.always = true; return v }

// orNone lets -1 mean the kernel's zero.
func (v integer) orNone() integer { v.none = true; return v }

func (v integer) isZero() bool { return *v.p == 0 && !v.always }

func (v integer) valid() bool {
	n := *v.p
	return n >= v.min && n <= v.max || n == 0 && !v.always || n == -1 && v.none
}

func (v integer) allowed() string {
	s := fmt.Sprintf("%d…%d", v.min, v.max)
	if v.none {
		s += ", or none"
	}
	if v.min > 0 && !v.always {
		s += ", or 0 for the default"
	}
	return s
}

func (v integer) text() string {
	if *v.p == -1 && v.none {
		return "none"
	}
	return strconv.Itoa(*v.p)
}

func (v integer) setText(s string) bool {
	if s == "none" && v.none {
		*v.p = -1
		return true
	}
	n, err := strconv.ParseInt(s, 0, 64)
	if err != nil {
		return false
	}
	*v.p = int(n)
	return n != -1 && v.valid()
}

func (v integer) encode(names) ([]byte, error) {
	n := uint32(*v.p)
	if *v.p == -1 {
		n = 0
	}
	return putUint(n, v.size, v.big), nil
}

func (v integer) decode(b []byte, _ names) error {
	n, err := getUint(b, v.size, v.big)
	*v.p = int(n)
	if n == 0 && v.none {
		*v.p = -1
	}
	return err
}

func putUint(n uint32, size int, big bool) []byte {
	var order binary.AppendByteOrder = binary.NativeEndian
	if big {
		order = binary.BigEndian
	}
	switch size {
	case 1:
		return []byte{byte(n)}
	case 2:
		return order.AppendUint16(nil, uint16(n))
	}
	return order.AppendUint32(nil, n)
}

func getUint(b []byte, size int, big bool) (uint32, error) {
	if len(b) != size {
		return 0, errLength
	}
	var order binary.ByteOrder = binary.NativeEndian
	if big {
		order = binary.BigEndian
	}
	switch size {
	case 1:
		return uint32(b[0]), nil
	case 2:
		return uint32(order.Uint16(b)), nil
	}
	return order.Uint32(b), nil
}

// boolean is a bool whose default is false: a number of size bytes, or, with
// size 0, an attribute that is there or not.
type boolean struct {
	p      *bool
	size   int
	always bool // send false too
}

func yes(p *bool) boolean     { return boolean{p: p, size: 1} }
func yesOrNo(p *bool) boolean { return boolean{p: p, size: 1, always: true} }
func flag32(p *bool) boolean  { return boolean{p: p, size: 4} }
func exists(p *bool) boolean  { return boolean{p: p} }

func (v boolean) isZero() bool    { return !*v.p && !v.always }
func (v boolean) valid() bool     { return true }
func (v boolean) allowed() string { return "true or false" }
func (v boolean) text() string    { return strconv.FormatBool(*v.p) }

func (v boolean) setText(s string) bool {
	on, ok := parseSwitch(s)
	*v.p = on
	return ok
}

func (v boolean) encode(names) ([]byte, error) {
	if v.size == 0 {
		return nil, nil
	}
	n := uint32(0)
	if *v.p {
		n = 1
	}
	return putUint(n, v.size, false), nil
}

func (v boolean) decode(b []byte, _ names) error {
	if len(b) == 0 && v.size == 0 {
		*v.p = true
		return nil
	}
	if v.size == 0 { // some drivers take a flag and report a byte
		v.size = 1
	}
	n, err := getUint(b, v.size, false)
	*v.p = n != 0
	return err
}

func parseSwitch(s string) (on, ok bool) {
	switch strings.ToLower(s) {
	case "true", "on", "yes", "1":
		return true, true
	case "false", "off", "no", "0":
		return false, true
	}
	return false, false
}

// toggle is a Toggle in an attribute of size bytes; inverse is for attributes
// that say "no …".
type toggle struct {
	p    *Toggle
	size int
}

func toggle8(p *Toggle) toggle { return toggle{p, 1} }

func (v toggle) isZero() bool    { return *v.p == Default }
func (v toggle) valid() bool     { return *v.p == Default || *v.p == On || *v.p == Off }
func (v toggle) allowed() string { return "on, off or default" }
func (v toggle) text() string    { return string(*v.p) }

func (v toggle) setText(s string) bool {
	if s == "" || s == "default" {
		*v.p = Default
		return true
	}
	on, ok := parseSwitch(s)
	*v.p = toggleOf(on)
	return ok
}

func (v toggle) encode(names) ([]byte, error) {
	n := uint32(0)
	if *v.p == On {
		n = 1
	}
	return putUint(n, v.size, false), nil
}

func (v toggle) decode(b []byte, _ names) error {
	n, err := getUint(b, v.size, false)
	*v.p = toggleOf(n != 0)
	return err
}

// option is one value of a choice: what people and what the kernel call it.
type option struct {
	text   string
	number uint32
}

// choice is a string type with few values; "" is the kernel's default.
type choice[S ~string] struct {
	p       *S
	size    int
	big     bool
	options []option
}

func (v choice[S]) isZero() bool { return *v.p == "" }

func (v choice[S]) valid() bool {
	_, ok := v.number()
	return ok || *v.p == ""
}

func (v choice[S]) number() (uint32, bool) {
	for _, o := range v.options {
		if o.text == string(*v.p) {
			return o.number, true
		}
	}
	return 0, false
}

func (v choice[S]) allowed() string {
	var all []string
	for _, o := range v.options {
		all = append(all, o.text)
	}
	return strings.Join(all, ", ")
}

func (v choice[S]) text() string { return string(*v.p) }

func (v choice[S]) setText(s string) bool {
	*v.p = S(s)
	return v.valid()
}

func (v choice[S]) encode(names) ([]byte, error) {
	n, _ := v.number()
	return putUint(n, v.size, v.big), nil
}

func (v choice[S]) decode(b []byte, _ names) error {
	n, err := getUint(b, v.size, v.big)
	if err != nil {
		return err
	}
	*v.p = S(fmt.Sprintf("%#x", n))
	for _, o := range v.options {
		if o.number == n {
			*v.p = S(o.text)
		}
	}
	return nil
}

// address is an IP address of one family; the two families of one parameter
// are two attributes.
type address struct {
	p      *netip.Addr
	family int  // 4 or 6
	only   bool // the parameter can't be of the other family
}

func ip4(p *netip.Addr) address     { return address{p: p, family: 4} }
func ip4Only(p *netip.Addr) address { return address{p: p, family: 4, only: true} }
func ip6(p *netip.Addr) address     { return address{p: p, family: 6} }

func (v address) isZero() bool {
	return !v.p.IsValid() || v.p.Is4() != (v.family == 4)
}

func (v address) valid() bool {
	return !v.p.IsValid() || v.p.Zone() == "" && (!v.only || v.p.Is4() == (v.family == 4))
}

func (v address) allowed() string {
	if v.only {
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

func (v address) encode(names) ([]byte, error) { return v.p.AsSlice(), nil }

// decode takes the unspecified address for "none given", as the kernel does.
func (v address) decode(b []byte, _ names) error {
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

func (v hardware) isZero() bool                 { return *v.p == MAC{} }
func (v hardware) valid() bool                  { return v.isZero() || v.p[0]&1 != 0 == v.group }
func (v hardware) text() string                 { return v.p.String() }
func (v hardware) encode(names) ([]byte, error) { return v.p[:], nil }

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

func (v hardware) decode(b []byte, _ names) error {
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

func (v device) encode(n names) ([]byte, error) {
	i, err := n.index(*v.p)
	return putUint(uint32(i), 4, false), err
}

func (v device) decode(b []byte, n names) error {
	i, err := getUint(b, 4, false)
	if err != nil || i == 0 {
		return err
	}
	*v.p, err = n.name(int(i))
	return err
}

// period is a duration that the kernel counts in units; unit is also its
// resolution.
type period struct {
	p    *time.Duration
	unit time.Duration
	min  time.Duration
	max  time.Duration
	none bool // negative stands for the kernel's 0
}

func (v period) isZero() bool { return *v.p == 0 }

func (v period) valid() bool {
	d := *v.p
	return d < 0 && v.none || d == 0 || d >= v.min && d > 0 && d <= v.max && d%v.unit == 0
}

func (v period) allowed() string {
	s := fmt.Sprintf("0 for the default, or %s…%s in steps of %s", max(v.min, v.unit), v.max, v.unit)
	if v.none {
		s += ", or none"
	}
	return s
}

func (v period) text() string {
	if *v.p < 0 {
		return "none"
	}
	return v.p.String()
}

func (v period) setText(s string) bool {
	if s == "none" && v.none {
		*v.p = -1
		return true
	}
	d, err := time.ParseDuration(s)
	*v.p = d
	return err == nil && d >= 0 && v.valid()
}

func (v period) encode(names) ([]byte, error) {
	return putUint(uint32(max(*v.p, 0)/v.unit), 4, false), nil
}

func (v period) decode(b []byte, _ names) error {
	n, err := getUint(b, 4, false)
	*v.p = time.Duration(n) * v.unit
	if n == 0 && v.none {
		*v.p = -1
	}
	return err
}

// bits packs several parameters into one attribute. A flag word (size 2 or 4)
// holds what is set; a masked one is struct { flags, mask } as 802.1Q has it,
// so that defaults can be left alone.
type bits struct {
	size    int
	big     bool
	masked  bool
	flags   map[uint32]*bool
	toggles map[uint32]*Toggle
}

func (v bits) valid() bool         { return true }
func (v bits) allowed() string     { return "" }
func (v bits) text() string        { return "" }
func (v bits) setText(string) bool { return false }

func (v bits) isZero() bool {
	_, mask := v.word()
	return mask == 0
}

func (v bits) word() (flags, mask uint32) {
	for bit, p := range v.flags {
		if *p {
			flags |= bit
			mask |= bit
		}
	}
	for bit, p := range v.toggles {
		if *p == On {
			flags |= bit
		}
		if *p != Default {
			mask |= bit
		}
	}
	return flags, mask
}

func (v bits) encode(names) ([]byte, error) {
	flags, mask := v.word()
	out := putUint(flags, v.size, v.big)
	if v.masked {
		out = append(out, putUint(mask, v.size, v.big)...)
	}
	return out, nil
}

func (v bits) decode(b []byte, _ names) error {
	if v.masked && len(b) == 2*v.size {
		b = b[:v.size]
	}
	n, err := getUint(b, v.size, v.big)
	for bit, p := range v.flags {
		*p = n&bit != 0
	}
	for bit, p := range v.toggles {
		*p = toggleOf(n&bit != 0)
	}
	return err
}

// pattern is a string type of a certain form; "" is the default.
type pattern[S ~string] struct {
	p    *S
	form *regexp.Regexp
	what string // the form, for people
}

func (v pattern[S]) isZero() bool                 { return *v.p == "" }
func (v pattern[S]) valid() bool                  { return *v.p == "" || v.form.MatchString(string(*v.p)) }
func (v pattern[S]) allowed() string              { return v.what }
func (v pattern[S]) text() string                 { return string(*v.p) }
func (v pattern[S]) encode(names) ([]byte, error) { return []byte(*v.p), nil }

func (v pattern[S]) setText(s string) bool {
	*v.p = S(s)
	return v.valid()
}

func (v pattern[S]) decode(b []byte, _ names) error {
	*v.p = S(cstring(b))
	return nil
}
