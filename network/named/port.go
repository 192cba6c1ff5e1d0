package named

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Port publishes ports of a container on the host.
type Port struct {
	Protocol string     `json:"protocol"`         // "tcp", "udp" or "sctp"
	HostAddr netip.Addr `json:"host_ip,omitzero"` // zero: all addresses of the host, also later ones; 0.0.0.0, ::: all of a family
	HostPort uint16     `json:"host_port"`        // the first; 0: a free one is chosen
	Port     uint16     `json:"port"`             // of the container, the first
	Count    uint16     `json:"count"`            // of consecutive ports, at least 1
	// BypassFirewall publishes the port even to whom the host's input rules refuse.
	BypassFirewall bool `json:"bypass_firewall,omitempty"`
	// Everywhere publishes the port on all hosts of a network that spans hosts, at all of their addresses.
	Everywhere bool `json:"everywhere,omitempty"`
}

// ParsePort parses [HOST-ADDRESS:][HOST-PORT[-LAST]:]PORT[-LAST][/PROTOCOL], as Docker and
// Podman write it. IPv6 addresses are in brackets. Without HOST-PORT a free one is chosen. In place of HOST-ADDRESS,
// "everywhere" means all hosts.
func ParsePort(text string) (Port, error) {
	p := Port{Protocol: "tcp", Count: 1}
	bad := func(reason string) (Port, error) { return p, badSpec("publish", text, reason) }
	rest := text
	if before, protocol, ok := strings.Cut(rest, "/"); ok {
		rest, p.Protocol = before, strings.ToLower(protocol)
	}
	if text == Everywhere {
		return bad("want ports behind it, e.g. everywhere:8080:80")
	}
	rest, p.Everywhere = strings.CutPrefix(rest, Everywhere+":")
	address, ports := "", rest
	if strings.HasPrefix(rest, "[") {
		end := strings.Index(rest, "]:")
		if end < 0 {
			return bad("want a port after the address, e.g. [::1]:8080:80")
		}
		address, ports = rest[1:end], rest[end+2:]
	} else if strings.Count(rest, ":") == 2 {
		address, ports, _ = strings.Cut(rest, ":")
	}
	if address != "" {
		var err error
		if p.HostAddr, err = netip.ParseAddr(address); err != nil {
			return bad("want an IP address of the host before the ports; IPv6 addresses in brackets")
		}
	}
	host, container, both := strings.Cut(ports, ":")
	if !both {
		host, container = "0", ports
	}
	host = cmp.Or(host, "0")
	var err error
	var hostCount uint16
	if p.Port, p.Count, err = parseRange(container); err != nil || p.Port == 0 {
		return bad("want HOST-PORT:PORT, e.g. 8080:80, 127.0.0.1:8080:80 or 8000-8009:80-89/udp")
	}
	if p.HostPort, hostCount, err = parseRange(host); err != nil {
		return bad("want HOST-PORT:PORT, e.g. 8080:80, 127.0.0.1:8080:80 or 8000-8009:80-89/udp")
	}
	if hostCount != p.Count && p.HostPort != 0 {
		return bad("the ranges differ in length")
	}
	return p, p.normalize()
}

func parseRange(text string) (first, count uint16, err error) {
	from, to, isRange := strings.Cut(text, "-")
	a, err := strconv.ParseUint(from, 10, 16)
	if err != nil || !isRange {
		return uint16(a), 1, err
	}
	b, err := strconv.ParseUint(to, 10, 16)
	if err == nil && b < a {
		err = fmt.Errorf("%d is less than %d", b, a)
	}
	return uint16(a), uint16(b - a + 1), err
}

// normalize sets defaults, and returns an *attach.SpecError if the port is not valid.
func (p *Port) normalize() error {
	if p.Count == 0 {
		p.Count = 1
	}
	if p.Everywhere && p.HostAddr.IsUnspecified() { // as engines write all addresses
		p.HostAddr = netip.Addr{}
	}
	bad := func(reason string) error { return badSpec("publish", p.String(), reason) }
	switch {
	case p.Protocol != "tcp" && p.Protocol != "udp" && p.Protocol != "sctp":
		return badSpec("publish", p.Protocol, "no such protocol", "tcp", "udp", "sctp")
	case p.Port == 0:
		return bad("the container's port is missing")
	case int(p.Port)+int(p.Count) > 1<<16, int(p.HostPort)+int(p.Count) > 1<<16:
		return bad("the range ends beyond port 65535")
	case p.Everywhere && p.HostAddr.IsValid():
		return bad("other hosts don't have the address " + p.HostAddr.String())
	case p.HostAddr.IsMulticast():
		return bad("the host's address is a group")
	}
	return nil
}

// covers reports whether p is published on addresses of the family of a.
func (p Port) covers(a netip.Addr) bool { return !p.HostAddr.IsValid() || p.HostAddr.Is4() == a.Is4() }

// overlaps reports whether two ports use a port of the host both.
func (p Port) overlaps(q Port) bool {
	sameAddr := !p.HostAddr.IsValid() || !q.HostAddr.IsValid() || p.HostAddr == q.HostAddr ||
		p.HostAddr.Is4() == q.HostAddr.Is4() && (p.HostAddr.IsUnspecified() || q.HostAddr.IsUnspecified())
	return sameAddr && p.Protocol == q.Protocol && p.HostPort <= q.HostPort+(q.Count-1) && q.HostPort <= p.HostPort+(p.Count-1)
}

// String returns the port in the form that ParsePort reads.
func (p Port) String() string {
	var b strings.Builder
	if p.Everywhere {
		b.WriteString(Everywhere + ":")
	}
	if p.HostAddr.IsValid() {
		if p.HostAddr.Is6() {
			fmt.Fprintf(&b, "[%s]:", p.HostAddr)
		} else {
			fmt.Fprintf(&b, "%s:", p.HostAddr)
		}
	}
	write := func(first uint16) {
		fmt.Fprint(&b, first)
		if p.Count > 1 && first != 0 {
			fmt.Fprintf(&b, "-%d", first+p.Count-1)
		}
	}
	write(p.HostPort)
	b.WriteByte(':')
	write(p.Port)
	if p.Protocol != "tcp" {
		b.WriteString("/" + p.Protocol)
	}
	return b.String()
}

// PortTakenError means that a port of the host is in use.
type PortTakenError struct {
	Port     Port   // as it was requested
	HostPort uint16 // the one of it that is in use
	Owner    string // in words
}

func (e *PortTakenError) Error() string {
	return fmt.Sprintf("%s port %d of the host is in use by %s", e.Port.Protocol, e.HostPort, e.Owner)
}
