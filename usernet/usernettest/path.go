package usernettest

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"cleat/lab"
)

// Ability is something that not every data path can do.
type Ability string

// The abilities. Each case names those that it needs.
const (
	IPv6         Ability = "ipv6"          // the guest has an IPv6 address
	Inbound      Ability = "inbound"       // forwards of any kind
	Inbound6     Ability = "inbound6"      // forwards for IPv6 clients
	ForwardForms Ability = "forward-forms" // by address, shifted, in ranges
	ForwardAuto  Ability = "forward-auto"  // forwards of every port that a program inside listens on
	KeepsSource  Ability = "keeps-source"  // a server inside sees the client's address
	DNS          Ability = "dns"           // an address inside that answers DNS queries
	DNS6         Ability = "dns6"          // the same over IPv6
	Ping         Ability = "ping"
	SetMTU       Ability = "mtu"
	Policy       Ability = "policy"        // rules by address, port and protocol
	NamePolicy   Ability = "name-policy"   // rules by name
	HostLoopback Ability = "host-loopback" // an address inside that leads to the host's loopback
	Helper       Ability = "helper"        // a process that can be stopped and killed
	AsHost       Ability = "as-host"       // behaves like sockets of the host where a router may behave differently
	FastOpen     Ability = "fast-open"     // clients may send data with their SYN
	Sockets      Ability = "sockets"       // a host socket for each flow
	Owner        Ability = "owner"         // the helper owns that socket, which ends with it
)

// Family is a version of IP.
type Family int

// The families.
const (
	V4 Family = 4
	V6 Family = 6
)

// String returns "v4" or "v6".
func (f Family) String() string { return fmt.Sprintf("v%d", int(f)) }

// Forward makes Count ports of the host, from Port on, lead to ports of the guest, from
// To on.
type Forward struct {
	Proto string     // "tcp" or "udp"
	Addr  netip.Addr // address to listen on; unspecified: all addresses of the family, invalid: of both families
	Port  uint16     // first port to listen on
	To    uint16     // first port of the guest
	Count int        // at least 1
}

// Rule allows or denies new flows.
type Rule struct {
	Allow  bool
	Target string // a prefix, or a name
	Ports  string // "" (all), "80" or "80-90"
	Proto  string // "" (all), "tcp", "udp"
}

// Options are the settings that a data path is started with. The zero value means an MTU
// of 65520 and no forwards.
type Options struct {
	MTU      int // bytes; 0: 65520
	Forwards []Forward
	Auto     bool // forward every port that a program inside listens on
	Rules    []Rule
	// Loopback makes the host's loopback reachable by an address that the data path
	// chooses (Instance.Loopback).
	Loopback bool
}

// minIPv6MTU is the smallest MTU of a link with IPv6, in bytes (RFC 8200, section 5).
const minIPv6MTU = 1280

// mtu returns the MTU with its default applied.
func (o Options) mtu() int {
	if o.MTU == 0 {
		return 65520
	}
	return o.MTU
}

// Path is a rootless data path that can be started.
type Path struct {
	Name    string
	Version string
	// Lacks has a reason for each missing ability.
	Lacks map[Ability]string
	// Start starts the data path for the topology's container, and returns when the
	// container can use it. ctx bounds only the start.
	Start func(ctx context.Context, s *Topology, o Options) (*Instance, error)
}

// has reports whether the path has an ability.
func (p Path) has(a Ability) bool { return p.missing([]Ability{a}) == "" }

// missing returns the reasons why the path lacks needed abilities, or "".
func (p Path) missing(need []Ability) string {
	var why []string
	for _, a := range need {
		if w, ok := p.Lacks[a]; ok {
			why = append(why, fmt.Sprintf("%s: %s", a, w))
		}
	}
	return strings.Join(why, "; ")
}

// Instance is a running data path.
type Instance struct {
	Proc   lab.Proc
	Device string // the container's link
	// Nameserver is the guest's nameserver, by family.
	Nameserver map[Family]netip.AddrPort
	// Loopback is the address inside that leads to the host's loopback.
	Loopback map[Family]netip.Addr
	// Reached is the address at which an outside client reaches the guest's forwarded
	// ports; nil: the host's addresses.
	Reached map[Family]netip.Addr
	// Log is the program's output.
	Log *os.File
	// Stopped is called after the process has ended.
	Stopped func()
}

// reached returns where an outside client reaches a forwarded port.
func (i *Instance) reached(f Family, port uint16) netip.AddrPort {
	a, ok := i.Reached[f]
	if !ok {
		a = HostAddr(f)
	}
	return netip.AddrPortFrom(a, port)
}

// logTail returns the end of the program's output.
func (i *Instance) logTail() string {
	const most = 2000
	if i.Log == nil {
		return ""
	}
	info, err := i.Log.Stat()
	if err != nil {
		return ""
	}
	b := make([]byte, min(most, info.Size()))
	n, _ := i.Log.ReadAt(b, info.Size()-int64(len(b)))
	return strings.TrimSpace(string(b[:n]))
}
