package usernettest

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"cleat/lab"
)

// An Ability is something that not every data path claims to have.
type Ability string

// The abilities. Each case names those that it needs.
const (
	IPv6         Ability = "ipv6"          // the guest has an IPv6 address
	Inbound      Ability = "inbound"       // forwards of any kind
	Inbound6     Ability = "inbound6"      // forwards for IPv6 clients
	ForwardForms Ability = "forward-forms" // by address, shifted, in ranges
	ForwardAuto  Ability = "forward-auto"  // of whatever starts to listen
	KeepsSource  Ability = "keeps-source"  // the server sees the client's address
	DNS          Ability = "dns"           // an address inside that answers
	DNS6         Ability = "dns6"          // the same by IPv6
	Ping         Ability = "ping"
	SetMTU       Ability = "mtu"
	Policy       Ability = "policy"        // rules by address, port and protocol
	NamePolicy   Ability = "name-policy"   // rules by name
	HostLoopback Ability = "host-loopback" // an address inside that reaches the host's loopback
	Helper       Ability = "helper"        // a process that can be stopped and killed
	AsHost       Ability = "as-host"       // what a router may handle otherwise than the host's own sockets do
	FastOpen     Ability = "fast-open"     // clients may send with their SYN
	Sockets      Ability = "sockets"       // there is a socket of the host for each flow
	Owner        Ability = "owner"         // which is the helper's, and ends with it
)

// Family is a version of IP.
type Family int

// The families.
const (
	V4 Family = 4
	V6 Family = 6
)

// String is "v4" or "v6".
func (f Family) String() string { return fmt.Sprintf("v%d", int(f)) }

// network is the name package net uses, e.g. "tcp4".
func (f Family) network(proto string) string { return fmt.Sprintf("%s%d", proto, int(f)) }

// Forward makes Count ports of the host lead to ports of the guest, beginning
// with Port and To.
type Forward struct {
	Proto string     // "tcp" or "udp"
	Addr  netip.Addr // to listen at; unspecified: all addresses of the family, invalid: of both
	Port  uint16     // to listen at
	To    uint16     // on the guest
	Count int        // at least 1
}

// Rule allows or denies new flows.
type Rule struct {
	Allow  bool
	Target string // a prefix, or a name
	Ports  string // "" (all), "80" or "80-90"
	Proto  string // "" (all), "tcp", "udp"
}

// Options are how a data path is to be started. The zero value is one with an
// MTU of 65520 and without forwards.
type Options struct {
	MTU      int // bytes; 0: 65520
	Forwards []Forward
	Auto     bool // forward whatever starts to listen
	Rules    []Rule
	// Loopback asks for the host's loopback to be reachable by an address of the
	// data path's choice (Instance.Loopback).
	Loopback bool
}

// minMTU6 is the smallest MTU of a link with IPv6, in bytes (RFC 8200, section 5).
const minIPv6MTU = 1280

// mtu is the MTU that is really meant.
func (o Options) mtu() int {
	if o.MTU == 0 {
		return 65520
	}
	return o.MTU
}

// A Path is a rootless data path that can be started.
type Path struct {
	Name    string
	Version string
	// Lacks says for each ability that is missing why it is.
	Lacks map[Ability]string
	// Start starts it for the site's container, and returns when the container
	// can be used. ctx bounds the starting alone.
	Start func(ctx context.Context, s *Topology, o Options) (*Instance, error)
}

// has tells whether the path has an ability.
func (p Path) has(a Ability) bool { return p.missing([]Ability{a}) == "" }

// lacks is why the path can't do all of what is needed, or "".
func (p Path) missing(need []Ability) string {
	var why []string
	for _, a := range need {
		if w, ok := p.Lacks[a]; ok {
			why = append(why, fmt.Sprintf("%s: %s", a, w))
		}
	}
	return strings.Join(why, "; ")
}

// An Instance is a running data path.
type Instance struct {
	Proc   lab.Proc
	Device string // the container's link
	// Nameserver is where the guest finds DNS, by family.
	Nameserver map[Family]netip.AddrPort
	// Loopback is the address inside that reaches the host's loopback.
	Loopback map[Family]netip.Addr
	// Reached is where an outside client finds the guest's forwarded ports; nil:
	// at the host's addresses.
	Reached map[Family]netip.Addr
	// Log is what the program said so far, for failures.
	Log *os.File
	// Stopped is called after the process has ended.
	Stopped func()
}

// reached is where an outside client finds a forwarded port.
func (i *Instance) reached(f Family, port uint16) netip.AddrPort {
	a, ok := i.Reached[f]
	if !ok {
		a = HostAddr(f)
	}
	return netip.AddrPortFrom(a, port)
}

// said is what the program wrote, at most the last few lines of it.
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
