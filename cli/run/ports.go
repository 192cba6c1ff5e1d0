package run

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"cleat/cli/hint"
	"cleat/cli/term"
	"cleat/sandbox"
	"cleat/sandbox/control"
)

// Published collects the values of --publish.
type Published struct {
	Forwards []sandbox.Forward
	Auto     []sandbox.AutoForward
}

const publishHint = "want [ADDRESS:]PORT:PORT[/udp], a range such as 8000-8010:9000-9010, :PORT for any free port of the host, or auto"

// Add parses a value of --publish and adds it.
func (p *Published) Add(text string) error {
	spec, err := parsePublish(text)
	if err != nil {
		return hint.With(hint.Usagef("--publish %q: %w", text, err), publishHint)
	}
	if spec.auto {
		auto := sandbox.AutoForward{
			TCP: spec.protocol != sandbox.UDP, UDP: spec.protocol != sandbox.TCP,
			Listen: spec.listen, Interface: spec.link, Except: spec.except,
		}
		for _, o := range p.Auto {
			if o.Listen == auto.Listen && o.Interface == auto.Interface && (o.TCP && auto.TCP || o.UDP && auto.UDP) {
				return hint.Usagef("--publish %q: auto is given twice", text)
			}
		}
		p.Auto = append(p.Auto, auto)
		return nil
	}
	for _, f := range spec.forwards() {
		if other, clash := p.clash(f); clash {
			return hint.Usagef("--publish %q: port %d is published twice, also to port %d", text, f.Listen.Port(), other.To.Port())
		}
		p.Forwards = append(p.Forwards, f)
	}
	return nil
}

// clash returns a forward that listens at the same address and port as f, if there is one.
func (p *Published) clash(f sandbox.Forward) (sandbox.Forward, bool) {
	for _, o := range p.Forwards {
		same := o.Listen.Addr() == f.Listen.Addr() || !o.Listen.Addr().IsValid() || !f.Listen.Addr().IsValid()
		if o.Protocol == f.Protocol && o.Listen.Port() == f.Listen.Port() && f.Listen.Port() != 0 && same && o.Interface == f.Interface {
			return o, true
		}
	}
	return sandbox.Forward{}, false
}

// names reports whether the command line states where a forward listens.
func (p *Published) names(w control.Forward) bool {
	return slices.ContainsFunc(p.Forwards, func(f sandbox.Forward) bool {
		given := WireForward(f)
		return given.Protocol == w.Protocol && given.Listen == w.Listen && given.Interface == w.Interface
	})
}

// publishSpec is a parsed value of --publish.
type publishSpec struct {
	protocol sandbox.Protocol // 0: none is given
	listen   netip.Addr       // invalid: all addresses
	link     string
	host     sandbox.PortRange // 0-0: any free port
	guest    sandbox.PortRange
	auto     bool
	except   []sandbox.PortRange // with auto
}

// parsePublish parses [ADDRESS[%LINK]:]HOST:GUEST[/PROTOCOL], where HOST and GUEST are ports or
// ranges, and [ADDRESS[%LINK]:]auto[,~PORTS…][/PROTOCOL].
func parsePublish(text string) (publishSpec, error) {
	var s publishSpec
	rest, protocol, ok := strings.Cut(text, "/")
	switch {
	case !ok:
	case protocol == "tcp":
		s.protocol = sandbox.TCP
	case protocol == "udp":
		s.protocol = sandbox.UDP
	default:
		return s, fmt.Errorf("protocol %q: want tcp or udp", protocol)
	}
	address, ports := splitAddress(rest)
	if err := s.parseAddress(address); err != nil {
		return s, err
	}
	if words := strings.Split(ports, ","); words[0] == "auto" {
		return s, s.parseAuto(words[1:])
	}
	s.protocol = cmp.Or(s.protocol, sandbox.TCP)
	return s, s.parsePorts(ports)
}

// splitAddress splits HOST:GUEST, HOST or auto from the address in front.
func splitAddress(s string) (address, ports string) {
	last := strings.LastIndexByte(s, ':')
	if last < 0 {
		return "", s
	}
	if strings.HasPrefix(s[last+1:], "auto") || strings.HasSuffix(s[:last], "]") {
		return s[:last], s[last+1:]
	}
	before := strings.LastIndexByte(s[:last], ':')
	if before < 0 {
		if strings.Trim(s[:last], "0123456789-") == "" { // a port, a range or empty: no address
			return "", s
		}
		return s[:last], s[last+1:]
	}
	return s[:before], s[before+1:]
}

// parseAddress parses ADDRESS%LINK.
func (s *publishSpec) parseAddress(text string) error {
	if text == "" {
		return nil
	}
	address, link, named := strings.Cut(text, "%")
	if strings.HasPrefix(address, "[") {
		if named {
			link, named = strings.CutSuffix(link, "]")
			address += "]"
		}
		if !strings.HasSuffix(address, "]") || strings.Contains(text, "%") && !named {
			return fmt.Errorf("address %q: want [IPV6] with both brackets", text)
		}
		address = strings.Trim(address, "[]")
	} else if strings.Contains(address, ":") {
		return fmt.Errorf("address %q: want an IPv6 address in brackets", text)
	}
	if strings.Contains(text, "%") && link == "" {
		return fmt.Errorf("address %q: want the name of a link after %%", text)
	}
	s.link = link
	if address == "" && link != "" {
		return nil
	}
	a, err := netip.ParseAddr(address)
	if err != nil {
		return fmt.Errorf("address %q: want an IP address of this host", text)
	}
	s.listen = a
	return nil
}

// parseAuto parses the exclusions after auto.
func (s *publishSpec) parseAuto(words []string) error {
	s.auto = true
	for _, w := range words {
		ports, ok := strings.CutPrefix(w, "~")
		if !ok {
			return fmt.Errorf("%q after auto: want an exclusion such as ~22 or ~8000-8010", w)
		}
		r, err := parsePortRange(ports)
		if err != nil {
			return err
		}
		s.except = append(s.except, r)
	}
	return nil
}

// parsePorts parses HOST:GUEST.
func (s *publishSpec) parsePorts(text string) error {
	host, guest, both := strings.Cut(text, ":")
	if !both {
		guest = host
	}
	var err error
	if s.guest, err = parsePortRange(guest); err != nil {
		return err
	}
	if host == "" || host == "0" {
		return nil // any free port for each port of the guest
	}
	if s.host, err = parsePortRange(host); err != nil {
		return err
	}
	h, g := s.host.Last-s.host.First, s.guest.Last-s.guest.First
	if h != g {
		return fmt.Errorf("%s of the host for %d of the guest: want equal numbers", term.Count(int(h)+1, "port"), int(g)+1)
	}
	return nil
}

// forwards returns a forward for each port.
func (s publishSpec) forwards() []sandbox.Forward {
	var all []sandbox.Forward
	for i := 0; i <= int(s.guest.Last)-int(s.guest.First); i++ {
		host := uint16(0)
		if s.host.First != 0 {
			host = s.host.First + uint16(i)
		}
		all = append(all, sandbox.Forward{
			Protocol:  s.protocol,
			Listen:    netip.AddrPortFrom(s.listen, host),
			Interface: s.link,
			To:        netip.AddrPortFrom(netip.Addr{}, s.guest.First+uint16(i)),
		})
	}
	return all
}

// parsePortRange parses "80" or "8000-8010".
func parsePortRange(text string) (sandbox.PortRange, error) {
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		last = first
	}
	a, errA := strconv.ParseUint(first, 10, 16)
	b, errB := strconv.ParseUint(last, 10, 16)
	if errA != nil || errB != nil || a == 0 || a > b {
		return sandbox.PortRange{}, fmt.Errorf("port %q: want a number from 1 to 65535, or a range", text)
	}
	return sandbox.PortRange{First: uint16(a), Last: uint16(b)}, nil
}
