package link

import (
	"encoding/binary"
	"fmt"
	"math"
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

func (v integer) isZero() bool { return *v.p == 0 && !v.always }

func (v integer) valid() bool {
	n := *v.p
	return n >= v.min && n <= v.max || n == 0 && !v.always
}

func (v integer) allowed() string {
	s := fmt.Sprintf("%d…%d", v.min, v.max)
	if v.min > 0 && !v.always {
		s += ", or 0 for the default"
	}
	return s
}

func (v integer) text() string { return strconv.Itoa(*v.p) }

func (v integer) setText(s string) bool {
	n, err := strconv.ParseInt(s, 0, 64)
	*v.p = int(n)
	return err == nil && v.valid()
}

func (v integer) encode(linkNames) ([]byte, error) {
	return putUint(uint32(*v.p), v.size, v.big), nil
}

func (v integer) decode(b []byte, _ linkNames) error {
	n, err := getUint(b, v.size, v.big)
	*v.p = int(n)
	return err
}

// Optional is a number of which 0 and negative values count. Its zero value is the kernel's default.
type Optional struct {
	Value int
	Set   bool
}

// optional is an Optional, in a signed attribute of 4 bytes.
type optional struct{ p *Optional }

func (v optional) isZero() bool { return !v.p.Set }

func (v optional) valid() bool { return v.p.Value == int(int32(v.p.Value)) }

func (v optional) allowed() string {
	return fmt.Sprintf("%d…%d, or default", math.MinInt32, math.MaxInt32)
}

func (v optional) text() string {
	if !v.p.Set {
		return "default"
	}
	return strconv.Itoa(v.p.Value)
}

func (v optional) setText(s string) bool {
	if *v.p = (Optional{}); s == v.text() {
		return true
	}
	n, err := strconv.ParseInt(s, 0, 64)
	*v.p = Optional{int(n), true}
	return err == nil && v.valid()
}

func (v optional) encode(linkNames) ([]byte, error) {
	return putUint(uint32(v.p.Value), 4, false), nil
}

func (v optional) decode(b []byte, _ linkNames) error {
	n, err := getUint(b, 4, false)
	*v.p = Optional{int(int32(n)), true}
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

// period is a duration in whole seconds.
type period struct{ p *time.Duration }

const maxPeriod = 1 << 24 * time.Second // 194 days

func (v period) isZero() bool { return *v.p == 0 }

func (v period) valid() bool {
	return *v.p >= 0 && *v.p <= maxPeriod && *v.p%time.Second == 0
}

func (v period) allowed() string {
	return fmt.Sprintf("0 for the default, or 1s…%s in steps of 1s", maxPeriod)
}

func (v period) text() string { return v.p.String() }

func (v period) setText(s string) bool {
	d, err := time.ParseDuration(s)
	*v.p = d
	return err == nil && v.valid()
}

func (v period) encode(linkNames) ([]byte, error) {
	return putUint(uint32(*v.p/time.Second), 4, false), nil
}

func (v period) decode(b []byte, _ linkNames) error {
	n, err := getUint(b, 4, false)
	*v.p = time.Duration(n) * time.Second
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
