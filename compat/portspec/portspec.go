package portspec

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Ports are consecutive ports, First to Last, both included. The zero Ports are
// none.
type Ports struct{ First, Last uint16 }

// Range is consecutive ports that lead to consecutive ports.
type Range struct {
	Ports
	To     uint16     // where First leads; the others follow
	ToAddr netip.Addr // whose; invalid: the other end decides
	Weak   bool       // came from "all": what can't be opened is left out
}

// Spec is a specification. The zero Spec forwards nothing, and nobody said so.
type Spec struct {
	None      bool       // "none"
	Listen    netip.Addr // where; invalid: any address
	Interface string     // limited to this link; "": any
	Auto      bool       // only while somebody listens at the other end
	Ranges    []Range    // by First; none overlap
}

// Error says which part of which specification can't be.
type Error struct {
	Spec string // the whole
	Why  string
}

// Error is the whole sentence.
func (e *Error) Error() string { return fmt.Sprintf("invalid port specifier '%s': %s", e.Spec, e.Why) }

// Parse reads a specification. The ephemeral ports are those that "all" leaves
// out, as in /proc/sys/net/ipv4/ip_local_port_range. The error is an *Error.
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

// listen takes the address and link off the front. A slash may also belong to an
// entry ("22:192.0.2.1/23"), so what is before it has to look like an address.
func listen(text string) (Spec, string, error) {
	front, rest, found := strings.Cut(text, "/")
	if !found {
		return Spec{}, text, nil
	}
	addr, link, linked := strings.Cut(front, "%")
	if linked && (link == "" || len(link) > 15) { // IFNAMSIZ - 1
		return Spec{}, "", fmt.Errorf("'%s' is no name of a link", link)
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

// leadsElsewhere tells whether the text in front of the first slash begins an
// entry with a destination: "22:..." or "all:...".
func leadsElsewhere(text string) bool {
	i := strings.LastIndexByte(text, ',')
	from, _, found := strings.Cut(text[i+1:], ":")
	if _, err := ports(from); err != nil && from != "all" {
		return false
	}
	return found
}

// address reads an address, with or without brackets.
func address(text string) (netip.Addr, error) {
	bare := text
	if strings.HasPrefix(bare, "[") && strings.HasSuffix(bare, "]") {
		bare = bare[1 : len(bare)-1]
	}
	a, err := netip.ParseAddr(bare)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("'%s' is no address", text)
	}
	return a.Unmap(), nil
}

// ports reads FIRST or FIRST-LAST.
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
		return 0, fmt.Errorf("'%s' is no port", text)
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

// entry reads one of the entries between the commas.
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

// mapping reads FROM[:TO], where TO is ports, an address, or ADDRESS/ports.
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
		return Range{}, fmt.Errorf("%s and %s are not equally many ports", from, target)
	}
	r.To = dst.First
	return r, nil
}

// finish applies exclusions and checks that nothing contradicts.
func (p *parser) finish() error {
	if len(p.literal) == 0 && len(p.all) == 0 {
		p.all = []Range{{Weak: true}}
	}
	if len(p.all) > 1 {
		return errors.New("'all' is there twice")
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
			taken = append(taken, l.Ports) // what is said literally goes before
		}
		r.Ports, r.To = Ports{1, 65535}, 1
		p.spec.Ranges = append(p.spec.Ranges, without(r, taken)...)
	}
	slices.SortFunc(p.spec.Ranges, func(a, b Range) int { return int(a.First) - int(b.First) })
	return families(p.spec)
}

// overlap finds two literal ranges that want the same port.
func overlap(ranges []Range) error {
	sorted := slices.Clone(ranges)
	slices.SortFunc(sorted, func(a, b Range) int { return int(a.First) - int(b.First) })
	for i := 1; i < len(sorted); i++ {
		if sorted[i].First <= sorted[i-1].Last {
			return fmt.Errorf("port %d is there twice", sorted[i].First)
		}
	}
	return nil
}

// families refuses destinations that clients of the listener can't speak to.
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

// without is what is left of r, in order.
func without(r Range, except []Ports) []Range {
	except = slices.Clone(except)
	slices.SortFunc(except, func(a, b Ports) int { return int(a.First) - int(b.First) })
	var left []Range
	next := int(r.First) // int: one past 65535 must exist
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
