package portspec

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Ports is the range of ports First to Last, both included. The zero Ports is empty.
type Ports struct{ First, Last uint16 }

// Range forwards a range of ports to a range of the same size.
type Range struct {
	Ports
	To     uint16     // target of First; the others follow
	ToAddr netip.Addr // target address; invalid if the other end decides
	Weak   bool       // came from "all": ports that can't be opened are skipped
}

// Spec is a parsed specification. The zero Spec forwards nothing.
type Spec struct {
	None      bool       // explicitly "none"
	Listen    netip.Addr // invalid means any address
	Interface string     // only on this link; "" means any
	Auto      bool       // only while a program listens at the other end
	Ranges    []Range    // sorted by First, disjoint
}

// Error is an invalid specification.
type Error struct {
	Spec string // the whole specification
	Why  string
}

// Error returns the message.
func (e *Error) Error() string { return fmt.Sprintf("invalid port specifier '%s': %s", e.Spec, e.Why) }

// Parse parses a specification. ephemeral are the ports that "all" leaves out, as in
// /proc/sys/net/ipv4/ip_local_port_range. The error is an *Error.
func Parse(text string, ephemeral Ports) (Spec, error) {
	if text == "none" {
		return Spec{None: true}, nil
	}
	s, entries, err := listen(text)
	if err != nil {
		return Spec{}, &Error{text, err.Error()}
	}
	p := parser{spec: s, ephemeral: ephemeral}
	for entry := range strings.SplitSeq(entries, ",") {
		if err := p.entry(entry); err != nil {
			return Spec{}, &Error{text, err.Error()}
		}
	}
	if err := p.finish(); err != nil {
		return Spec{}, &Error{text, err.Error()}
	}
	return p.spec, nil
}

// listen splits off the address and link at the front. A slash may also belong to an
// entry ("22:192.0.2.1/23"), so the text before it must look like an address.
func listen(text string) (Spec, string, error) {
	front, rest, found := strings.Cut(text, "/")
	if !found {
		return Spec{}, text, nil
	}
	addr, link, linked := strings.Cut(front, "%")
	if linked && (link == "" || len(link) > 15) { // IFNAMSIZ - 1
		return Spec{}, "", fmt.Errorf("'%s' is not a link name", link)
	}
	if addr == "" {
		return Spec{Interface: link}, rest, nil
	}
	a, err := address(addr)
	switch {
	case err == nil:
		return Spec{Listen: a, Interface: link}, rest, nil
	case leadsElsewhere(addr):
		return Spec{}, text, nil
	}
	return Spec{}, "", err
}

// leadsElsewhere reports whether the text before the first slash ends in an entry with a
// destination: "22:..." or "all:...".
func leadsElsewhere(text string) bool {
	i := strings.LastIndexByte(text, ',')
	from, _, found := strings.Cut(text[i+1:], ":")
	if _, err := ports(from); err != nil && from != "all" {
		return false
	}
	return found
}

// address parses an address, with or without brackets.
func address(text string) (netip.Addr, error) {
	bare := text
	if strings.HasPrefix(bare, "[") && strings.HasSuffix(bare, "]") {
		bare = bare[1 : len(bare)-1]
	}
	a, err := netip.ParseAddr(bare)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("'%s' is not an address", text)
	}
	return a.Unmap(), nil
}

// ports parses FIRST or FIRST-LAST.
func ports(text string) (Ports, error) {
	first, last, ranged := strings.Cut(text, "-")
	if !ranged {
		last = first
	}
	f, err := port(first)
	if err != nil {
		return Ports{}, err
	}
	l, err := port(last)
	if err != nil {
		return Ports{}, err
	}
	if l < f {
		return Ports{}, fmt.Errorf("%d comes before %d", l, f)
	}
	return Ports{f, l}, nil
}

func port(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	switch {
	case err != nil || text[0] == '+':
		return 0, fmt.Errorf("'%s' is not a port", text)
	case n == 0:
		return 0, errors.New("port 0 can't be forwarded")
	}
	return uint16(n), nil
}

// parser collects entries.
type parser struct {
	spec      Spec
	ephemeral Ports
	literal   []Range
	all       []Range // at most one destination each
	except    []Ports
}

func (p *parser) entry(text string) error {
	switch {
	case text == "auto":
		p.spec.Auto = true
		return nil
	case strings.HasPrefix(text, "~"):
		x, err := ports(text[1:])
		p.except = append(p.except, x)
		return err
	}
	from, to, mapped := strings.Cut(text, ":")
	if from == "all" {
		r := Range{Weak: true}
		if mapped {
			a, err := address(to)
			if err != nil {
				return err
			}
			r.ToAddr = a
		}
		p.all = append(p.all, r)
		return nil
	}
	r, err := mapping(from, to, mapped)
	p.literal = append(p.literal, r)
	return err
}

// mapping parses FROM[:TO], where TO is ports, an address, or ADDRESS/ports.
func mapping(from, to string, mapped bool) (Range, error) {
	src, err := ports(from)
	if err != nil {
		return Range{}, err
	}
	r := Range{Ports: src, To: src.First}
	if !mapped {
		return r, nil
	}
	addr, target, slash := strings.Cut(to, "/")
	if slash {
		if r.ToAddr, err = address(addr); err != nil {
			return Range{}, err
		}
	} else if r.ToAddr, err = address(to); err == nil {
		return r, nil
	} else {
		target = to
	}
	dst, err := ports(target)
	if err != nil {
		return Range{}, err
	}
	if dst.Last-dst.First != src.Last-src.First {
		return Range{}, fmt.Errorf("%s and %s have different numbers of ports", from, target)
	}
	r.To = dst.First
	return r, nil
}

// finish applies exclusions and checks for contradictions.
func (p *parser) finish() error {
	if len(p.literal) == 0 && len(p.all) == 0 {
		p.all = []Range{{Weak: true}}
	}
	if len(p.all) > 1 {
		return errors.New("'all' is given twice")
	}
	if err := overlap(p.literal); err != nil {
		return err
	}
	for _, r := range p.literal {
		p.spec.Ranges = append(p.spec.Ranges, without(r, p.except)...)
	}
	for _, r := range p.all {
		taken := slices.Clone(p.except)
		if p.ephemeral != (Ports{}) {
			taken = append(taken, p.ephemeral)
		}
		for _, l := range p.literal {
			taken = append(taken, l.Ports) // literal ports take precedence
		}
		r.Ports, r.To = Ports{1, 65535}, 1
		p.spec.Ranges = append(p.spec.Ranges, without(r, taken)...)
	}
	slices.SortFunc(p.spec.Ranges, func(a, b Range) int { return int(a.First) - int(b.First) })
	return families(p.spec)
}

// overlap returns an error if two literal ranges share a port.
func overlap(ranges []Range) error {
	sorted := slices.Clone(ranges)
	slices.SortFunc(sorted, func(a, b Range) int { return int(a.First) - int(b.First) })
	for i := 1; i < len(sorted); i++ {
		if sorted[i].First <= sorted[i-1].Last {
			return fmt.Errorf("port %d is given twice", sorted[i].First)
		}
	}
	return nil
}

// families rejects destinations of another family than the listener's.
func families(s Spec) error {
	for _, r := range s.Ranges {
		switch {
		case !r.ToAddr.IsValid():
		case !s.Listen.IsValid() && r.ToAddr.Is4():
			return fmt.Errorf("listening on any address can't lead to %s; did you mean 0.0.0.0/...?", r.ToAddr)
		case !s.Listen.IsValid():
			return fmt.Errorf("listening on any address can't lead to %s; did you mean [::]/...?", r.ToAddr)
		case s.Listen.Is4() != r.ToAddr.Is4():
			return fmt.Errorf("%s can't lead to %s", s.Listen, r.ToAddr)
		}
	}
	return nil
}

// without returns the rest of r, in order.
func without(r Range, except []Ports) []Range {
	except = slices.Clone(except)
	slices.SortFunc(except, func(a, b Ports) int { return int(a.First) - int(b.First) })
	var left []Range
	next := int(r.First) // an int, because it may be 65536
	keep := func(last int) {
		if next <= last {
			part := r
			part.Ports = Ports{uint16(next), uint16(last)}
			part.To = r.To + (part.First - r.First)
			left = append(left, part)
		}
	}
	for _, x := range except {
		if int(x.Last) < next || x.First > r.Last {
			continue
		}
		keep(int(x.First) - 1)
		next = int(x.Last) + 1
	}
	keep(int(r.Last))
	return left
}
