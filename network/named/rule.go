package named

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"cleat/packet"
	"cleat/policy"
)

// Rule allows or denies traffic between containers, or between containers and addresses
// outside. Rules have no order: a deny beats an allow, unless the allow is an exception to it,
// as in package policy. What no rule matches is allowed inside a network and from it to the
// outside, and denied between networks, unless the network denies by default.
type Rule struct {
	Allow    bool
	From, To Selector
	Ports    []policy.PortRange // of the destination, sorted and disjoint; nil: all
	Protocol packet.Protocol    // packet.TCP, UDP or ICMP, which includes ICMPv6; 0: each
}

// Selector selects ends of traffic: everything, containers of a network, or addresses and
// names outside.
type Selector struct {
	Any       bool
	Network   string       // of containers
	Container string       // the name or an alias of one on the network; "": all, or those of Label
	Label     string       // NAME=VALUE of the containers
	Prefix    netip.Prefix // addresses outside
	Name      string       // a DNS name, as in policy.Rule; only a destination
}

// IsContainers reports whether the selector selects containers, and not only by Any.
func (s Selector) IsContainers() bool { return s.Network != "" }

// String returns the selector in the form that ParseRule reads.
func (s Selector) String() string {
	switch {
	case s.Any:
		return "any"
	case s.Container != "":
		return s.Network + "/" + s.Container
	case s.Label != "":
		return s.Network + "/" + s.Label
	case s.Network != "":
		return s.Network
	case s.Name != "":
		return s.Name
	case s.Prefix.IsSingleIP():
		return s.Prefix.Addr().String()
	}
	return s.Prefix.String()
}

// String returns the rule in the form that ParseRule reads, with "allow" or "deny" before it.
func (r Rule) String() string {
	verb, to := "deny", r.To.String()
	if r.Allow {
		verb = "allow"
	}
	if len(r.Ports) > 0 && r.To.Prefix.IsValid() && r.To.Prefix.Addr().Is6() {
		to = "[" + to + "]"
	}
	for i, p := range r.Ports {
		to += ":,"[min(i, 1):][:1] + p.String()
	}
	if r.Protocol != 0 {
		if len(r.Ports) == 0 {
			to += ":*"
		}
		to += "/" + strings.ToLower(r.Protocol.String())
	}
	return fmt.Sprintf("%s %s to %s", verb, r.From, to)
}

// home returns the network that the rule belongs to: that of its source or, if that is
// outside, of its destination.
func (r Rule) home() string {
	if r.From.Network != "" {
		return r.From.Network
	}
	return r.To.Network
}

const wantRule = "want SOURCE to DESTINATION[:PORTS[/PROTOCOL]], e.g. web/api to db:5432"

// ParseRule parses "SOURCE to DESTINATION[:PORTS[/PROTOCOL]]".
//
// SOURCE is NETWORK, NETWORK/CONTAINER, NETWORK/LABEL=VALUE, an address or network outside, or
// any. DESTINATION may also be a DNS name, or a CONTAINER on the network of SOURCE. exists
// reports whether a network of a name exists. The error is an *attach.SpecError.
func ParseRule(allow bool, text string, exists func(network string) bool) (Rule, error) {
	r := Rule{Allow: allow}
	bad := func(reason string) (Rule, error) { return r, badSpec("RULE", text, reason) }
	words := strings.Fields(text)
	if len(words) != 3 || words[1] != "to" {
		return bad(wantRule)
	}
	var err error
	if r.From, err = parseSelector(words[0], "", exists); err != nil {
		return r, err
	}
	if r.From.Name != "" {
		return bad("names of others are only destinations; give the source's address")
	}
	to, ports := splitPorts(words[2])
	if ports != "" {
		p, err := policy.ParseRule(allow, "all:"+ports)
		if err != nil {
			return bad("ports: want a port, a range like 80-90, a list like 80,443 or *, and /tcp, /udp or /icmp")
		}
		r.Ports, r.Protocol = p.Ports, p.Protocol
	}
	if r.To, err = parseSelector(to, r.From.Network, exists); err != nil {
		return r, err
	}
	if r.home() == "" {
		return bad("neither end is a container")
	}
	return r, nil
}

// splitPorts splits a destination into its end and its ports, which follow a colon. An IPv6
// address with ports is in brackets.
func splitPorts(text string) (to, ports string) {
	if rest, ok := strings.CutPrefix(text, "["); ok {
		to, ports, _ = strings.Cut(rest, "]")
		return to, strings.TrimPrefix(ports, ":")
	}
	if strings.Count(text, ":") > 1 {
		return text, "" // an IPv6 address
	}
	to, ports, _ = strings.Cut(text, ":")
	return to, ports
}

// parseSelector parses one end of a rule. A word that is no network is a container on the
// network of the source, if there is one.
func parseSelector(text, source string, exists func(string) bool) (Selector, error) {
	bad := func(reason string) (Selector, error) { return Selector{}, badSpec("RULE", text, reason) }
	if text == "any" || text == "all" {
		return Selector{Any: true}, nil
	}
	if p, err := ParseNetwork(text); err == nil {
		return Selector{Prefix: p}, nil
	}
	network, rest, ok := strings.Cut(text, "/")
	switch {
	case ok && !networkName().MatchString(network):
		return bad("no network can have the name " + network)
	case ok && !exists(network):
		return bad("there is no network " + network)
	case ok && strings.Contains(rest, "="):
		return Selector{Network: network, Label: rest}, nil
	case ok && hostName().MatchString(strings.ToLower(rest)):
		return Selector{Network: network, Container: strings.ToLower(rest)}, nil
	case ok:
		return bad("want NETWORK/CONTAINER or NETWORK/LABEL=VALUE")
	case networkName().MatchString(text) && exists(text):
		return Selector{Network: text}, nil
	case source != "" && !strings.Contains(text, ".") && hostName().MatchString(strings.ToLower(text)):
		return Selector{Network: source, Container: strings.ToLower(text)}, nil
	}
	if p, err := policy.ParseRule(true, text); err == nil && p.Name != "" && domain.MatchString(p.Name) {
		return Selector{Name: p.Name}, nil
	}
	return bad("is no network, no address and no DNS name with a dot")
}

// domain matches names that can't be those of containers or networks.
var domain = regexp.MustCompile(`^(\*\.)?[^.]+\.`)

// matches reports whether the selector selects an endpoint, and not only by Any.
func (s Selector) matches(e *Endpoint) bool {
	switch {
	case s.Network != e.Network:
		return false
	case s.Container != "":
		return slices.Contains(e.Names, s.Container)
	case s.Label != "":
		name, value, _ := strings.Cut(s.Label, "=")
		got, has := e.Wanted.Labels[name]
		return has && got == value
	}
	return true
}

// namesEndpoints reports whether the selector depends on more of an endpoint than its network.
func (s Selector) namesEndpoints() bool { return s.Container != "" || s.Label != "" }

// rank orders selectors that match the same end: a higher one selects a part of what a lower
// one selects.
func (s Selector) rank() int {
	switch {
	case s.Any:
		return 0
	case s.Container != "":
		return 3
	case s.Label != "":
		return 2
	case s.Network != "":
		return 1
	case s.Name != "":
		return 1 + 128
	}
	return 1 + s.Prefix.Bits()
}

// exceptionTo reports whether r, an allow, is an exception to deny, where both match: deny
// matches everything that r matches, and more.
func (r *Rule) exceptionTo(deny *Rule) bool {
	from, to := r.From.rank()-deny.From.rank(), r.To.rank()-deny.To.rank()
	ports := portsWithin(r.Ports, deny.Ports) && (deny.Protocol == 0 || deny.Protocol == r.Protocol)
	narrower := from > 0 || to > 0 || !portsWithin(deny.Ports, r.Ports) || r.Protocol != deny.Protocol
	return from >= 0 && to >= 0 && ports && narrower
}

// portsWithin reports whether all ports are among others; nil means all ports.
func portsWithin(ports, of []policy.PortRange) bool {
	if of == nil || ports == nil {
		return of == nil
	}
	return !slices.ContainsFunc(ports, func(p policy.PortRange) bool {
		return !slices.ContainsFunc(of, func(o policy.PortRange) bool { return o.First <= p.First && p.Last <= o.Last })
	})
}

// verdict is what rules say about a kind of traffic.
type verdict int8

const (
	noRule verdict = iota
	accepted
	dropped
)

// judge returns the verdict of rules that all match.
func judge(matching []*Rule) verdict {
	v := noRule
	for _, r := range matching {
		if r.Allow {
			v = accepted
		}
	}
	for _, deny := range matching {
		excepted := deny.Allow || slices.ContainsFunc(matching, func(r *Rule) bool { return r.Allow && r.exceptionTo(deny) })
		if !excepted {
			return dropped
		}
	}
	return v
}
