package why

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"cleat/netns"
	"cleat/network/named"
	"cleat/packet"
)

// listener is a socket at which a program waits for connections or datagrams.
type listener struct {
	at    netip.AddrPort
	inode string
}

// program describes the program that has the socket; "" if it is not known.
func (l listener) program() string {
	return named.ProcessWith(map[string]bool{"socket:[" + l.inode + "]": true})
}

// listeners returns the sockets of a namespace at which programs wait.
func listeners(ns *netns.NS, protocol packet.Protocol) ([]listener, error) {
	table := "tcp"
	if protocol == packet.UDP {
		table = "udp"
	}
	var all []listener
	return all, ns.Do(func() error {
		for _, name := range []string{table, table + "6"} {
			text, err := os.ReadFile("/proc/thread-self/net/" + name)
			if errors.Is(err, fs.ErrNotExist) {
				continue // no IPv6
			}
			if err != nil {
				return fmt.Errorf("list sockets of %s: %w", ns, err)
			}
			all = append(all, parseSockets(string(text))...)
		}
		return nil
	})
}

// parseSockets parses a table of /proc/net (proc(5)): lines after the first begin with
// number, local address, remote address and state, and have the inode number in field 10.
func parseSockets(text string) []listener {
	const local, state, inode = 1, 3, 9
	const listening, unconnected = "0A", "07" // TCP_LISTEN and, for UDP, TCP_CLOSE (net/tcp_states.h)
	var all []listener
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) <= inode || f[state] != listening && f[state] != unconnected {
			continue
		}
		if at, ok := parseSocketAddress(f[local]); ok && at.Port() != 0 {
			all = append(all, listener{at, f[inode]})
		}
	}
	return all
}

// parseSocketAddress parses an address as words of 32 bits in the machine's byte order, a colon,
// and a port, all in hexadecimal.
func parseSocketAddress(text string) (netip.AddrPort, bool) {
	words, number, _ := strings.Cut(text, ":")
	b, err := hex.DecodeString(words)
	port, portErr := strconv.ParseUint(number, 16, 16)
	if err != nil || portErr != nil || len(b)%4 != 0 {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	a, ok := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(a.Unmap(), uint16(port)), ok
}

// checkListeners checks that programs wait for what is sent to the targets.
func (v *investigation) checkListeners(context.Context) {
	if v.q.To.Port == 0 {
		return
	}
	var said []string
	for _, t := range v.targets {
		at, to := t.at, netip.AddrPortFrom(t.addr, v.q.To.Port)
		if t.published != nil {
			at, to = t.published.at, t.published.to
		}
		if at == nil && t.outcome == refused {
			v.bad(checkListener, refusedOutside(t, to))
		}
		if at == nil || at.ns == nil {
			continue
		}
		all, err := listeners(at.ns, v.q.To.Protocol)
		if err != nil {
			v.unknown(checkListener, "%v", err)
			continue
		}
		f, text := v.listening(t, at, to, all)
		switch {
		case slices.Contains(said, text):
		case f == nil:
			v.ok(checkListener, "%s", text)
		default:
			v.bad(checkListener, *f)
		}
		said = append(said, text)
	}
}

// refusedOutside returns the finding that a machine outside this host refuses what it gets.
func refusedOutside(t *target, to netip.AddrPort) finding {
	return finding{cause: Refused, about: t, explains: refused,
		because: fmt.Sprintf("%s refuses it: no program listens on port %d there, or its firewall rejects it", to.Addr(), to.Port()),
		try:     fmt.Sprintf("start the program at %s that is to have port %d", to.Addr(), to.Port())}
}

// listening says whether one of the sockets gets what is sent to an address. The finding is nil
// if it does.
func (v *investigation) listening(t *target, m *machine, to netip.AddrPort, all []listener) (*finding, string) {
	verb := map[bool]string{true: "waits for datagrams", false: "listens"}[v.q.To.Protocol == packet.UDP]
	var same []listener // port
	for _, l := range all {
		if l.at.Port() == to.Port() {
			same = append(same, l)
		}
	}
	if i := slices.IndexFunc(same, func(l listener) bool { return l.takes(to.Addr(), t.outcome == refused && !v.rejected(t)) }); i >= 0 {
		return nil, fmt.Sprintf("%s of %s %s at %s", programText(same[i]), m.label, verb, same[i].at)
	}
	f := &finding{explains: refused | unclear, about: t}
	switch {
	case len(same) == 0:
		v.nobody(f, m, to, all, verb)
	case same[0].at.Addr().IsLoopback():
		f.cause = Loopback
		f.because = fmt.Sprintf("%s of %s %s only at %s, which only %[2]s itself reaches", programText(same[0]), m.label, verb, same[0].at)
		f.try = fmt.Sprintf("make it listen at %s in %s", netip.AddrPortFrom(unspecified(to.Addr()), to.Port()), m.label)
	default:
		f.cause = OtherAddress
		f.because = fmt.Sprintf("%s of %s %s only at %s, not at %s", programText(same[0]), m.label, verb, same[0].at, to.Addr())
		f.try = fmt.Sprintf("make it listen at %s in %s", netip.AddrPortFrom(unspecified(to.Addr()), to.Port()), m.label)
	}
	return f, f.because
}

// rejected reports whether a rule explains that a target refuses.
func (v *investigation) rejected(t *target) bool {
	return slices.ContainsFunc(v.findings, func(f finding) bool { return f.cause == Firewall && f.explainsProbe(t) })
}

// takes reports whether a socket gets what is sent to an address. A socket at :: also gets IPv4
// unless its program forbids it (IPV6_V6ONLY), which only shows in that it is refused.
func (l listener) takes(a netip.Addr, isRefused bool) bool {
	switch at := l.at.Addr(); {
	case at == a, at == unspecified(a):
		return true
	default:
		return at == netip.IPv6Unspecified() && !isRefused
	}
}

func unspecified(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

func programText(l listener) string {
	if p := l.program(); p != "" {
		return p
	}
	return "a program"
}

// nobody completes the finding that no program has a port, with the ports that are in use.
func (v *investigation) nobody(f *finding, m *machine, to netip.AddrPort, all []listener, verb string) {
	f.cause = NoListener
	f.because = fmt.Sprintf("no program of %s %s on port %d", m.label, verb, to.Port())
	f.try = fmt.Sprintf("start the program of %s that is to have port %d", m.label, to.Port())
	var ports []uint16
	for _, l := range all {
		if !l.at.Addr().IsLoopback() && !slices.Contains(ports, l.at.Port()) {
			ports = append(ports, l.at.Port())
		}
	}
	slices.Sort(ports)
	const most = 5
	switch {
	case len(ports) == 0 || m.isHost:
	case len(ports) > most:
		f.because += fmt.Sprintf(", but some do on %d others", len(ports))
	default:
		var texts []string
		for _, p := range ports {
			texts = append(texts, strconv.Itoa(int(p)))
		}
		f.because += ", but one does on " + strings.Join(texts, ", ")
	}
	if len(ports) == 1 && !m.isHost {
		d := v.q.To
		d.Port = ports[0]
		if v.q.To.Name != Host {
			f.try = "cleat net why " + v.from.ref() + " " + d.String()
		}
	}
	if m.isHost {
		f.try = fmt.Sprintf("cleat net publish CONTAINER %d:PORT", to.Port())
	}
}
