package policy

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"cleat/packet"
)

// compiled is a rule or a built-in denial.
type compiled struct {
	Rule
	builtin string // the reason, for a built-in denial
}

// set is Rules compiled for fast search: one map look-up for each prefix length in use,
// and one for each label of a name. It is immutable.
type set struct {
	src      Rules
	rules    []compiled
	denies   bool // verdict on what no rule matches
	hasNames bool
	// onlyNames is set if only names are allowed, so that an answer for another name is
	// useless.
	onlyNames bool
	canAllow  bool // some flow can be allowed
	// deniesIPv4 is set if a rule denies an IPv4 network or a name, so that it matters
	// which IPv6 addresses lead to IPv4.
	deniesIPv4 bool

	everything [2][]int32 // rules for all addresses of IPv4 and of IPv6
	byPrefix   map[netip.Prefix][]int32
	lengths    [2][]int // prefix lengths in byPrefix, for IPv4 and IPv6
	exact      map[string][]int32
	below      map[string][]int32 // key "example.com" for *.example.com
}

// newSet validates and compiles rules.
func newSet(src Rules) (*set, error) {
	s := &set{
		denies:   src.Denies(),
		byPrefix: map[netip.Prefix][]int32{},
		exact:    map[string][]int32{},
		below:    map[string][]int32{},
	}
	if err := src.checkHostSockets(); err != nil {
		return nil, err
	}
	if len(src.NAT64) > maxNAT64Stated {
		return nil, fmt.Errorf("read nat64: %d prefixes: want at most %d", len(src.NAT64), maxNAT64Stated)
	}
	for _, p := range src.NAT64 {
		if err := checkNAT64(p); err != nil {
			return nil, err
		}
	}
	s.src = Rules{Default: src.Default, HostSockets: src.HostSockets, NAT64: slices.Clone(src.NAT64)}
	for _, b := range builtins() {
		s.add(compiled{Rule{Prefix: b.prefix}, b.why})
	}
	seen := map[string]bool{}
	for _, r := range src.Rules {
		r, err := r.checked()
		if err != nil {
			return nil, err
		}
		s.src.Rules = append(s.src.Rules, r)
		s.deniesIPv4 = s.deniesIPv4 || !r.Allow && (r.Name != "" || r.Prefix.IsValid() && r.Prefix.Addr().Is4())
		if text := r.verb() + r.String(); !seen[text] {
			seen[text] = true
			s.add(compiled{r, ""})
		}
	}
	allows := slices.DeleteFunc(slices.Clone(s.src.Rules), func(r Rule) bool { return !r.Allow })
	closed := s.denies || slices.ContainsFunc(s.src.Rules, func(r Rule) bool { return r.equal(Rule{All: true}) })
	s.onlyNames = closed && len(allows) > 0 && !slices.ContainsFunc(allows, func(r Rule) bool { return r.Name == "" })
	s.canAllow = !closed || len(allows) > 0
	return s, nil
}

func (s *set) add(c compiled) {
	i := int32(len(s.rules))
	s.rules = append(s.rules, c)
	switch base, wild := strings.CutPrefix(c.Name, "*."); {
	case c.All:
		s.everything[0] = append(s.everything[0], i)
		s.everything[1] = append(s.everything[1], i)
	case c.Name != "":
		s.hasNames = true
		if wild {
			s.below[base] = append(s.below[base], i)
		} else {
			s.exact[c.Name] = append(s.exact[c.Name], i)
		}
	default:
		f, bits := family(c.Prefix.Addr()), c.Prefix.Bits()
		if bits == 0 {
			s.everything[f] = append(s.everything[f], i)
			return
		}
		s.byPrefix[c.Prefix] = append(s.byPrefix[c.Prefix], i)
		if !slices.Contains(s.lengths[f], bits) {
			s.lengths[f] = append(s.lengths[f], bits)
		}
	}
}

// family returns 0 for IPv4 and 1 for IPv6.
func family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// named reports whether any rule mentions a name.
func (s *set) named(name string) bool {
	for rules := range s.about(name) {
		if len(rules) > 0 {
			return true
		}
	}
	return false
}

// allowsName reports whether some rule allows anything for a name.
func (s *set) allowsName(name string) bool {
	for rules := range s.about(name) {
		if slices.ContainsFunc(rules, func(i int32) bool { return s.rules[i].Allow }) {
			return true
		}
	}
	return false
}

// about iterates over lists of the rules that mention a name: itself, and then its parent
// domains, nearest first.
func (s *set) about(name string) iter.Seq[[]int32] {
	return func(yield func([]int32) bool) {
		rules, more := s.exact[name], true
		for more && yield(rules) {
			_, name, more = strings.Cut(name, ".")
			rules = s.below[name]
		}
	}
}

// query is a flow in the form that rules are matched with.
type query struct {
	proto packet.Protocol // ICMP for both versions
	port  uint16
	// dst is the guest's destination, unmapped; to is the target of a mapping, or
	// invalid.
	dst, to netip.Addr
	names   []string // of dst and to
	// guarded is set if a built-in denial covers to: then only ownNames can allow the
	// flow.
	guarded  bool
	ownNames []string
	forms    []form // of dst
}

// form is an IPv4 address contained in a destination.
type form struct {
	addr  netip.Addr
	names []string
}

// hits are the rules that match a flow.
type hits struct {
	deny, allow []int32
}

// decide returns the rule that decides about a flow, or -1, and whether the flow is
// allowed.
//
// A flow is denied if a rule denies it, unless a rule that allows it is an exception: the
// denial matches everything that the exception matches, and more. Where no denial
// applies, a rule that allows the flow does so, and without one the default decides.
//
// If the destination contains IPv4 addresses, the flow is judged once for each, as if it
// were a second address of the destination, and denied if it is denied for any of them
// (embedded, which is zero for the destination itself): a translator may use any of them,
// and a hostile guest chooses all of them. A rule that allows such an address makes an
// exception to a denial, but allows nothing by itself.
func (s *set) decide(q *query) (rule int32, embedded [4]byte, allowed bool) {
	var denyArray, allowArray [24]int32
	h := hits{deny: denyArray[:0], allow: allowArray[:0]}
	h = s.byAddress(h, q, q.dst)
	if q.to.IsValid() {
		h = s.byAddress(h, q, q.to)
	}
	for _, name := range q.names {
		h = s.byName(h, q, name)
	}
	if len(q.forms) == 0 {
		rule = s.denial(h)
	} else {
		rule, embedded = s.denialOfForm(h, q)
	}
	if rule >= 0 {
		return rule, embedded, false
	}
	for _, a := range h.allow {
		if s.better(a, rule) {
			rule = a
		}
	}
	return rule, [4]byte{}, rule >= 0 || !s.denies
}

// denial returns the rule that denies a flow and has no exception, or -1.
func (s *set) denial(h hits) (rule int32) {
	rule = -1
	for _, d := range h.deny {
		if !s.excepted(d, h.allow) && s.better(d, rule) {
			rule = d
		}
	}
	return rule
}

// denialOfForm is denial for a flow whose destination contains IPv4 addresses. It also
// returns the address that the rule applies to, unless that is the destination itself.
func (s *set) denialOfForm(h hits, q *query) (rule int32, embedded [4]byte) {
	rule = -1
	for _, f := range q.forms {
		also := s.byAddress(h, q, f.addr)
		for _, name := range f.names {
			also = s.byName(also, q, name)
		}
		if d := s.denial(also); d >= 0 && s.better(d, rule) {
			rule, embedded = d, [4]byte{}
			if !slices.Contains(h.deny, d) {
				embedded = f.addr.As4()
			}
		}
	}
	return rule, embedded
}

// better reports whether rule i is a better reason than rule than, if any: a user's rule
// before a built-in one, then the more specific, then the first.
func (s *set) better(i, than int32) bool {
	if than < 0 {
		return true
	}
	a, b := &s.rules[i], &s.rules[than]
	if (a.builtin == "") != (b.builtin == "") {
		return a.builtin == ""
	}
	if wa, wb := a.width(), b.width(); wa != wb {
		return wa < wb
	}
	return i < than
}

// excepted reports whether one of the rules that allow a flow is an exception to the one
// that denies it. An exception to a built-in denial may be as wide as the denial.
func (s *set) excepted(deny int32, allows []int32) bool {
	d := &s.rules[deny]
	for _, i := range allows {
		a := &s.rules[i]
		if a.within(&d.Rule) && (d.builtin != "" || !d.within(&a.Rule)) {
			return true
		}
	}
	return false
}

func (s *set) byAddress(h hits, q *query, a netip.Addr) hits {
	f := family(a)
	h = s.pick(h, q, s.everything[f])
	for _, bits := range s.lengths[f] {
		if p, err := a.Prefix(bits); err == nil {
			h = s.pick(h, q, s.byPrefix[p])
		}
	}
	return h
}

func (s *set) byName(h hits, q *query, name string) hits {
	allowed := len(h.allow)
	for rules := range s.about(name) {
		h = s.pick(h, q, rules)
	}
	if q.guarded && !slices.Contains(q.ownNames, name) {
		h.allow = h.allow[:allowed]
	}
	return h
}

// pick adds those of the given rules that match the flow. Built-in denials do not match a
// mapped destination.
func (s *set) pick(h hits, q *query, rules []int32) hits {
	for _, i := range rules {
		r := &s.rules[i]
		if !r.covers(q.proto, q.port) || r.builtin != "" && q.to.IsValid() {
			continue
		}
		if r.Allow {
			h.allow = append(h.allow, i)
		} else {
			h.deny = append(h.deny, i)
		}
	}
	return h
}
