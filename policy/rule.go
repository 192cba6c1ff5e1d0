package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"cleat/internal/dnsname"
	"cleat/packet"
)

// Rule allows or denies some destinations. It is pure data; fill it in or use ParseRule.
// Exactly one of All, Prefix and Name selects the destinations.
type Rule struct {
	Allow  bool         // false: the rule denies
	All    bool         // every address of both families
	Prefix netip.Prefix // masked; never IPv4-mapped IPv6
	// Name is in lower case without a final dot. "*.example.com" matches all names below
	// example.com, at any depth, but not example.com itself.
	Name string
	// Ports are the destination ports, sorted and disjoint. nil matches all ports, and
	// protocols without ports.
	Ports []PortRange
	// Protocol is TCP, UDP or ICMP, which includes ICMPv6; 0 matches each.
	Protocol packet.Protocol
}

// PortRange is the range First to Last, both included.
type PortRange struct{ First, Last uint16 }

// String returns the range as rules write it: "443" or "80-90".
func (p PortRange) String() string {
	if p.First == p.Last {
		return strconv.Itoa(int(p.First))
	}
	return fmt.Sprintf("%d-%d", p.First, p.Last)
}

// RuleError is an invalid rule.
type RuleError struct {
	Rule string // as given
	Part string // the part that is wrong
	Want string // a description of a valid form
}

func (e *RuleError) Error() string {
	if e.Part == e.Rule {
		return fmt.Sprintf("read rule %q: want %s", e.Rule, e.Want)
	}
	return fmt.Sprintf("read rule %q: %q: want %s", e.Rule, e.Part, e.Want)
}

// String returns the rule in the form that ParseRule reads, without allow or deny.
func (r Rule) String() string {
	var b strings.Builder
	switch {
	case r.All:
		b.WriteString("all")
	case r.Name != "":
		b.WriteString(r.Name)
	case r.Prefix.IsValid():
		a := r.Prefix.String()
		if r.Prefix.IsSingleIP() {
			a = r.Prefix.Addr().String()
		}
		if len(r.Ports) > 0 && r.Prefix.Addr().Is6() {
			a = "[" + a + "]"
		}
		b.WriteString(a)
	}
	for i, p := range r.Ports {
		b.WriteByte(":,"[min(i, 1)])
		b.WriteString(p.String())
	}
	switch r.Protocol {
	case 0:
	case packet.ICMP, packet.ICMPv6:
		b.WriteString("/icmp")
	default:
		b.WriteString("/" + strings.ToLower(r.Protocol.String()))
	}
	return b.String()
}

// verb returns the word in front of a rule.
func (r Rule) verb() string {
	if r.Allow {
		return "allow"
	}
	return "deny"
}

// checked validates a rule, which may have been filled in by hand, and returns it in the
// form that ParseRule returns.
func (r Rule) checked() (Rule, error) {
	kinds := 0
	for _, set := range []bool{r.All, r.Prefix.IsValid(), r.Name != ""} {
		if set {
			kinds++
		}
	}
	s := r.String()
	if kinds != 1 {
		return Rule{}, &RuleError{s, s, "exactly one of all, a prefix and a name"}
	}
	if r.Protocol != 0 && !slices.Contains([]packet.Protocol{packet.TCP, packet.UDP, packet.ICMP, packet.ICMPv6}, r.Protocol) {
		return Rule{}, &RuleError{s, r.Protocol.String(), wantProto}
	}
	out, err := ParseRule(r.Allow, s)
	if err == nil && out.Name != dnsname.Fold(r.Name) {
		return Rule{}, &RuleError{s, r.Name, "a name"}
	}
	return out, err
}

func (r Rule) equal(o Rule) bool {
	return r.Allow == o.Allow && r.All == o.All && r.Prefix == o.Prefix && r.Name == o.Name &&
		r.Protocol == o.Protocol && slices.Equal(r.Ports, o.Ports)
}

// covers reports whether the rule matches a protocol and port. ICMP stands for both
// versions; port is ignored then.
func (r *Rule) covers(proto packet.Protocol, port uint16) bool {
	if r.Protocol != 0 && r.Protocol != proto {
		return false
	}
	if r.Ports == nil {
		return true
	}
	if proto != packet.TCP && proto != packet.UDP {
		return false
	}
	_, found := slices.BinarySearchFunc(r.Ports, port, func(p PortRange, port uint16) int {
		switch {
		case p.Last < port:
			return -1
		case p.First > port:
			return 1
		}
		return 0
	})
	return found
}

// within reports whether o matches every flow that r matches. The addresses of a name are
// not known here, so a name lies within no prefix except those that match everything.
func (r *Rule) within(o *Rule) bool {
	if o.Protocol != 0 && o.Protocol != r.Protocol {
		return false
	}
	return r.destinationWithin(o) && portsWithin(r.Ports, o.Ports)
}

func (r *Rule) destinationWithin(o *Rule) bool {
	switch {
	case o.All:
		return true
	case r.All:
		return false
	case o.Name != "":
		return r.Name != "" && nameWithin(r.Name, o.Name)
	case r.Name != "":
		return o.Prefix.Bits() == 0
	}
	return o.Prefix.Bits() <= r.Prefix.Bits() && o.Prefix.Contains(r.Prefix.Addr())
}

// NameMatches reports whether a name, in lower case without a final dot, matches that of a rule.
func NameMatches(name, pattern string) bool { return nameWithin(name, pattern) }

// nameWithin reports whether all names of one pattern match another.
func nameWithin(name, of string) bool {
	if name == of {
		return true
	}
	below, wild := strings.CutPrefix(of, "*")
	return wild && strings.HasSuffix(name, below)
}

func portsWithin(ports, of []PortRange) bool {
	if of == nil || ports == nil {
		return of == nil
	}
	for _, p := range ports {
		if !slices.ContainsFunc(of, func(o PortRange) bool { return o.First <= p.First && p.Last <= o.Last }) {
			return false
		}
	}
	return true
}

// width orders rules from the most specific to the widest, to select the reason among
// several rules that agree.
func (r *Rule) width() int {
	w := 0
	switch {
	case r.All:
		w = 256 * 4
	case r.Name == "":
		w = (r.Prefix.Addr().BitLen() - r.Prefix.Bits()) * 4
	case strings.HasPrefix(r.Name, "*."):
		w = 4
	}
	if r.Ports == nil {
		w += 2
	}
	if r.Protocol == 0 {
		w++
	}
	return w
}

// sorted sorts port ranges and joins adjacent ones.
func sorted(ports []PortRange) []PortRange {
	slices.SortFunc(ports, func(a, b PortRange) int { return cmp.Compare(a.First, b.First) })
	var out []PortRange
	for _, p := range ports {
		if n := len(out); n > 0 && int(p.First) <= int(out[n-1].Last)+1 {
			out[n-1].Last = max(out[n-1].Last, p.Last)
		} else {
			out = append(out, p)
		}
	}
	return out
}
