package control

import (
	"fmt"
	"net/netip"
	"time"

	"cleat/internal/ledger"
)

// Version is the protocol's. It changes when a request that was understood
// before no longer is.
const Version = 1

// Op is what a request wants.
type Op string

// The requests.
const (
	OpInfo          Op = "info"
	OpFlows         Op = "flows"
	OpStats         Op = "stats"
	OpForwards      Op = "forwards"
	OpForwardAdd    Op = "forward-add"    // needs Request.Forward
	OpForwardRemove Op = "forward-remove" // needs Request.Forward
	OpPolicy        Op = "policy"
	OpPolicySet     Op = "policy-set" // needs Request.Policy
	OpStop          Op = "stop"
)

// Request is one line to the server.
type Request struct {
	Version int      `json:"version"`
	Do      Op       `json:"do"`
	Forward *Forward `json:"forward,omitempty"`
	Policy  *string  `json:"policy,omitempty"` // the text of a policy file
}

// Answer is one line from the server. Beside Version it has either Error or
// what was asked for.
type Answer struct {
	Version  int       `json:"version"`
	Error    *Error    `json:"error,omitempty"`
	Info     *Info     `json:"info,omitempty"`
	Flows    []Flow    `json:"flows,omitempty"`
	Stats    *Stats    `json:"stats,omitempty"`
	Forwards []Forward `json:"forwards,omitempty"` // for OpForwardAdd the one that was opened
	Policy   *string   `json:"policy,omitempty"`
}

// Kind tells errors apart.
type Kind string

// The kinds of errors.
const (
	KindRequest Kind = "request" // it makes no sense; nothing was done
	KindVersion Kind = "version" // the other side speaks another version
	KindFailed  Kind = "failed"  // it was tried, and failed
)

// Error is why a request was not fulfilled.
type Error struct {
	Kind    Kind   `json:"kind"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"` // what to do about it
}

func (e *Error) Error() string { return e.Message }

// BadRequest makes a KindRequest error, for Targets to return.
func BadRequest(format string, args ...any) error {
	return &Error{Kind: KindRequest, Message: fmt.Sprintf(format, args...)}
}

// Info is what a helper says about itself.
type Info struct {
	Name      string       `json:"name"`
	PID       int          `json:"pid"`
	UID       int          `json:"uid"`
	Command   []string     `json:"command,omitempty"` // empty where it serves a namespace that was there before
	Namespace string       `json:"namespace"`         // the path of the sandbox's network namespace
	Started   time.Time    `json:"started"`
	MTU       int          `json:"mtu"`           // bytes
	Addresses []netip.Addr `json:"addresses"`     // the guest's
	Resolvers []netip.Addr `json:"resolvers"`     // those it can ask for names, at port 53
	Tier      string       `json:"tier"`          // how TCP connections move: "tun", "splice", "seccomp"
	Why       string       `json:"why,omitempty"` // and why not in a faster way
}

// Forward is a port of the host that leads into the sandbox.
type Forward struct {
	Protocol string `json:"protocol"` // "tcp" or "udp"
	// Listen is the host's side. Without an address it is all addresses of both
	// families; port 0 takes any free one.
	Listen    Endpoint `json:"listen"`
	Interface string   `json:"interface,omitempty"` // listen on this link only
	// To is the guest's side. Without an address it is the guest's own.
	To   Endpoint `json:"to"`
	Auto bool     `json:"auto,omitempty"` // opened because somebody inside listens there
}

// String is the forward as --publish takes it.
func (f Forward) String() string {
	at := f.Interface
	if at != "" {
		at = "%" + at
	}
	if f.Listen.Addr.IsValid() {
		at = f.Listen.Addr.String() + at
	}
	if f.Listen.Addr.Is6() {
		at = "[" + at + "]"
	}
	if at != "" {
		at += ":"
	}
	s := fmt.Sprintf("%s%d:%d", at, f.Listen.Port, f.To.Port)
	if f.Protocol != "tcp" {
		s += "/" + f.Protocol
	}
	return s
}

// Endpoint is an address, which may be missing, and a port.
type Endpoint struct {
	Addr netip.Addr `json:"address"` // "" when missing
	Port uint16     `json:"port"`
}

// EndpointOf is the Endpoint of an address that may be invalid.
func EndpointOf(a netip.AddrPort) Endpoint { return Endpoint{a.Addr(), a.Port()} }

// AddrPort is the endpoint with an invalid address where it has none.
func (e Endpoint) AddrPort() netip.AddrPort { return netip.AddrPortFrom(e.Addr, e.Port) }

// String is "192.0.2.1:80", "[2001:db8::1]:80", or "*:80" without an address.
func (e Endpoint) String() string {
	if !e.Addr.IsValid() {
		return fmt.Sprintf("*:%d", e.Port)
	}
	return netip.AddrPortFrom(e.Addr, e.Port).String()
}

// Flow is a conversation that is under way.
type Flow struct {
	Protocol    string         `json:"protocol"` // "tcp", "udp", "icmp", "icmp6"
	Inbound     bool           `json:"inbound"`  // began outside, by a Forward
	Source      netip.AddrPort `json:"source"`   // as the sender wrote them
	Destination netip.AddrPort `json:"destination"`
	Name        string         `json:"name,omitempty"` // the destination was looked up by it
	Host        netip.AddrPort `json:"host"`           // the other end on the host's side, after redirection
	State       string         `json:"state"`
	Tier        string         `json:"tier"`
	Why         string         `json:"why,omitempty"` // it is not the helper's tier
	Started     time.Time      `json:"started"`
	OutBytes    uint64         `json:"out_bytes"` // payload from the guest
	InBytes     uint64         `json:"in_bytes"`  // payload to the guest
	QueuedOut   int            `json:"queued_out"`
	QueuedIn    int            `json:"queued_in"`
}

// Stats are counters since the helper's start; usernet.Stats says of each what
// it counts.
type Stats struct {
	TunInPackets    uint64            `json:"tun_in_packets"`
	TunOutPackets   uint64            `json:"tun_out_packets"`
	TunInBytes      uint64            `json:"tun_in_bytes"`
	TunOutBytes     uint64            `json:"tun_out_bytes"`
	TCPFlows        uint64            `json:"tcp_flows"`
	Spliced         uint64            `json:"spliced"`
	SplicedOutBytes uint64            `json:"spliced_out_bytes"`
	SplicedInBytes  uint64            `json:"spliced_in_bytes"`
	Substituted     uint64            `json:"substituted"`
	Lent            uint64            `json:"lent"`
	Datagram        uint64            `json:"datagram"`
	Kept            map[string]uint64 `json:"kept,omitempty"`
	Unspliced       map[string]uint64 `json:"unspliced,omitempty"`
	Returned        uint64            `json:"returned"`
	Intruders       uint64            `json:"intruders"`
	UDPFlows        uint64            `json:"udp_flows"`
	ICMPFlows       uint64            `json:"icmp_flows"`
	Open            int               `json:"open"`
	Refused         uint64            `json:"refused"`
	Malformed       uint64            `json:"malformed"`
	Spoofed         uint64            `json:"spoofed"`
	OverLimit       uint64            `json:"over_limit"`
	Retransmits     uint64            `json:"retransmits"`
	Dropped         uint64            `json:"dropped"`
	HandedOver      uint64            `json:"handed_over"`
	Unsupported     uint64            `json:"unsupported"`
	Ledger          ledger.Usage      `json:"ledger"`
}
