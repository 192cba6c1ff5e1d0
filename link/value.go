package link

import (
	"encoding/binary"
	"fmt"
	"regexp"
	"strconv"
	"time"
)

// integer is an int, in an attribute of size bytes.
type integer struct {
	p        *int
	min, max int
	size     int
	big      bool // network byte order
	always   bool // send zero too
	none     bool // -1 means the kernel's 0, because 0 means its default
}

func u8(p *int) integer   { return integer{p: p, max: 1<<8 - 1, size: 1} }
func u16(p *int) integer  { return integer{p: p, max: 1<<16 - 1, size: 2} }
func u32(p *int) integer  { return integer{p: p, max: 1<<32 - 1, size: 4} }
func be16(p *int) integer { return integer{p: p, max: 1<<16 - 1, size: 2, big: true} }
func be32(p *int) integer { return integer{p: p, max: 1<<32 - 1, size: 4, big: true} }

// between sets the range of valid values other than the default.
func (v integer) between(low, high int) integer { v.min, v.max = low, high; return v }

// required sends zero too: the kernel has no default.
func (v integer) required() integer { v.always = true; return v }

// orNone lets -1, as text "none", mean the kernel's zero.
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

func (v integer) encode(linkNames) ([]byte, error) {
	n := uint32(*v.p)
	if *v.p == -1 {
		n = 0
	}
	return putUint(n, v.size, v.big), nil
}

func (v integer) decode(b []byte, _ linkNames) error {
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

// period is a duration that the kernel counts in units. Durations between two
// units are invalid.
type period struct {
	p    *time.Duration
	unit time.Duration
	min  time.Duration
	max  time.Duration
	none bool // negative, as text "none", means the kernel's 0
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

func (v period) encode(linkNames) ([]byte, error) {
	return putUint(uint32(max(*v.p, 0)/v.unit), 4, false), nil
}

func (v period) decode(b []byte, _ linkNames) error {
	n, err := getUint(b, 4, false)
	*v.p = time.Duration(n) * v.unit
	if n == 0 && v.none {
		*v.p = -1
	}
	return err
}

// bits is an attribute of size bytes that holds several parameters as bits. A
// masked attribute is struct { flags, mask }, as 802.1Q has it: bits outside the
// mask keep their default.
type bits struct {
	attributeOnly
	size    int
	masked  bool
	flags   map[uint32]*bool
	toggles map[uint32]*Toggle
}

func (v bits) isZero() bool {
	_, mask := v.flagsAndMask()
	return mask == 0
}

func (v bits) flagsAndMask() (flags, mask uint32) {
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

func (v bits) encode(linkNames) ([]byte, error) {
	flags, mask := v.flagsAndMask()
	out := putUint(flags, v.size, false)
	if v.masked {
		out = append(out, putUint(mask, v.size, false)...)
	}
	return out, nil
}

func (v bits) decode(b []byte, _ linkNames) error {
	if v.masked && len(b) == 2*v.size {
		b = b[:v.size]
	}
	n, err := getUint(b, v.size, false)
	for bit, p := range v.flags {
		*p = n&bit != 0
	}
	for bit, p := range v.toggles {
		*p = toggleOf(n&bit != 0)
	}
	return err
}

// pattern is a string that matches a regular expression; "" is the default.
type pattern struct {
	parameterOnly
	p           *string
	expression  func() *regexp.Regexp
	description string // in messages
}

func (v pattern) isZero() bool    { return *v.p == "" }
func (v pattern) valid() bool     { return *v.p == "" || v.expression().MatchString(*v.p) }
func (v pattern) allowed() string { return v.description }
func (v pattern) text() string    { return *v.p }

func (v pattern) setText(s string) bool {
	*v.p = s
	return v.valid()
}
