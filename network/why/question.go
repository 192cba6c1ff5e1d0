package why

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"cleat/netns/find"
	"cleat/network/attach"
	"cleat/packet"
)

// Host is the name of the host as a destination.
const Host = "host"

// Question asks whether a container reaches a destination.
type Question struct {
	// From is a container as network/named finds it, or NETWORK/NAME. @HOST behind it means that of a host.
	From    string
	To      Destination
	Cluster *Cluster `json:"-"` // nil: nothing is known of other hosts
}

// Destination is what is to be reached, as it was typed.
type Destination struct {
	// Name is Host, an address, NETWORK/NAME, a name on a network of the source, a container
	// as network/named finds it, or a DNS name.
	Name     string
	Port     uint16          // 0: none
	Protocol packet.Protocol // packet.TCP or packet.UDP with a port, 0 without
}

// engines stand before a colon in references to containers, whose name may be a number.
var engines = []string{find.Docker, find.Podman, find.Containerd, find.LXC, find.Apptainer, find.Process, find.Named, find.Path, attach.EnginePod, attach.EngineCNI}

// ParseDestination parses NAME[:PORT[/tcp|/udp]]. An IPv6 address with a port is in brackets.
func ParseDestination(text string) (Destination, error) {
	name, port, hasPort := cutPort(text)
	if name == "" || hasPort && port == "" {
		return Destination{}, fmt.Errorf("%q: want NAME, NAME:PORT or NAME:PORT/udp", text)
	}
	d := Destination{Name: name}
	if !hasPort {
		return d, nil
	}
	number, protocol, _ := strings.Cut(port, "/")
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil || n == 0 {
		return d, fmt.Errorf("%q: want a port from 1 to 65535 after the colon", text)
	}
	switch d.Port = uint16(n); strings.ToLower(protocol) {
	case "", "tcp":
		d.Protocol = packet.TCP
	case "udp":
		d.Protocol = packet.UDP
	default:
		return d, fmt.Errorf("%q: want tcp or udp after the port", text)
	}
	return d, nil
}

// cutPort splits what was typed at the colon before a port, if there is one. The name is empty if
// there is anything but an IPv6 address in brackets.
func cutPort(text string) (name, port string, hasPort bool) {
	if rest, ok := strings.CutPrefix(text, "["); ok {
		name, port, closed := strings.Cut(rest, "]")
		port, hasPort = strings.CutPrefix(port, ":")
		if a, err := netip.ParseAddr(name); err != nil || !a.Is6() || !closed || !hasPort && port != "" {
			return "", "", false
		}
		return name, port, hasPort
	}
	i := strings.LastIndexByte(text, ':')
	if _, err := netip.ParseAddr(text); err == nil || i < 0 || slices.Contains(engines, text[:i]) {
		return text, "", false
	}
	if rest := text[i+1:]; rest == "" || rest[0] >= '0' && rest[0] <= '9' {
		return text[:i], rest, true
	}
	return text, "", false // docker:web
}

// String returns the destination in the form that ParseDestination reads.
func (d Destination) String() string {
	if d.Port == 0 {
		return d.Name
	}
	if a, err := netip.ParseAddr(d.Name); err == nil && a.Is6() {
		return "[" + d.Name + "]:" + d.portText()
	}
	return d.Name + ":" + d.portText()
}

// portText returns the port, with its protocol unless that is TCP.
func (d Destination) portText() string {
	if d.Protocol == packet.UDP {
		return fmt.Sprintf("%d/udp", d.Port)
	}
	return strconv.Itoa(int(d.Port))
}
