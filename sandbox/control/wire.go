package control

import (
	"fmt"
	"net/netip"
	"time"

	"cleat/internal/ledger"
	"cleat/usernet"
)

// Version is the protocol version. It changes when the server no longer accepts a request that it
// accepted before.
const Version = 1

// Op is the operation of a request.
type Op string

// Operations.
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

var ops = []Op{OpInfo, OpFlows, OpStats, OpForwards, OpForwardAdd, OpForwardRemove, OpPolicy, OpPolicySet, OpStop}

// Request is one line to the server.
type Request struct {
	Version int      `json:"version"`
	Do      Op       `json:"do"`
	Forward *Forward `json:"forward,omitempty"`
	Policy  *string  `json:"policy,omitempty"` // the text of a policy file
}

// Answer is one line from the server. Besides Version it contains either Error or the
// fields that the operation returns.
type Answer struct {
	Version  int       `json:"version"`
	Error    *Error    `json:"error,omitempty"`
	Info     *Info     `json:"info,omitempty"`
	Flows    []Flow    `json:"flows,omitempty"`
	Stats    *Stats    `json:"stats,omitempty"`
	Forwards []Forward `json:"forwards,omitempty"` // for OpForwardAdd the opened one
	Policy   *string   `json:"policy,omitempty"`
}

// Kind classifies errors.
type Kind string

// Kinds of errors.
const (
	KindRequest Kind = "request" // the request is invalid and had no effect
	KindVersion Kind = "version" // the other side uses another protocol version
	KindFailed  Kind = "failed"  // the operation failed
)

// Error is the reason why a request failed.
type Error struct {
	Kind    Kind   `json:"kind"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"` // how to fix it
}

func (e *Error) Error() string { return e.Message }

// BadRequest returns an error of KindRequest, for use by a Target.
func BadRequest(format string, args ...any) error {
	return &Error{Kind: KindRequest, Message: fmt.Sprintf(format, args...)}
}

// Info describes a helper.
type Info struct {
	Name      string       `json:"name"`
	PID       int          `json:"pid"`
	UID       int          `json:"uid"`
	Command   []string     `json:"command,omitempty"` // empty if it serves an existing namespace
	Namespace string       `json:"namespace"`         // path of the sandbox's network namespace
	Started   time.Time    `json:"started"`
	MTU       int          `json:"mtu"`           // bytes
	Addresses []netip.Addr `json:"addresses"`     // of the guest
	Resolvers []netip.Addr `json:"resolvers"`     // DNS servers for the guest, at port 53
	Tier      string       `json:"tier"`          // of TCP connections: "tun", "splice", "seccomp"
	Why       string       `json:"why,omitempty"` // why no faster tier is used
}

// Forward is a forward from a port of the host into the sandbox.
type Forward struct {
	Protocol string `json:"protocol"` // "tcp" or "udp"
	// Listen is the host's side. No address means all addresses of both families; port 0
	// means any free port.
	Listen    Endpoint `json:"listen"`
	Interface string   `json:"interface,omitempty"` // listen only on this interface
	// To is the guest's side. No address means the guest's own.
	To   Endpoint `json:"to"`
	Auto bool     `json:"auto,omitempty"` // opened because a program inside listens on the port
}

// String returns the forward in the format of --publish.
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

// Endpoint is an optional address and a port.
type Endpoint struct {
	Addr netip.Addr `json:"address"` // "" if there is none
	Port uint16     `json:"port"`
}

// EndpointOf converts a, whose address may be invalid, to an Endpoint.
func EndpointOf(a netip.AddrPort) Endpoint { return Endpoint{a.Addr(), a.Port()} }

// AddrPort converts e. The address of the result is invalid if e has none.
func (e Endpoint) AddrPort() netip.AddrPort { return netip.AddrPortFrom(e.Addr, e.Port) }

// String returns "192.0.2.1:80", "[2001:db8::1]:80", or "*:80" without an address.
func (e Endpoint) String() string {
	if !e.Addr.IsValid() {
		return fmt.Sprintf("*:%d", e.Port)
	}
	return netip.AddrPortFrom(e.Addr, e.Port).String()
}

// Flow is an active flow.
type Flow struct {
	Protocol    string         `json:"protocol"` // "tcp", "udp", "icmp", "icmp6"
	Inbound     bool           `json:"inbound"`  // from outside, through a Forward
	Source      netip.AddrPort `json:"source"`   // as written by the sender
	Destination netip.AddrPort `json:"destination"`
	Name        string         `json:"name,omitempty"` // by which the guest looked up the destination
	Host        netip.AddrPort `json:"host"`           // the remote end on the host's side, after redirection
	State       string         `json:"state"`
	Tier        string         `json:"tier"`
	Why         string         `json:"why,omitempty"` // why it is not the helper's tier
	Started     time.Time      `json:"started"`
	OutBytes    uint64         `json:"out_bytes"` // payload from the guest
	InBytes     uint64         `json:"in_bytes"`  // payload to the guest
	QueuedOut   int            `json:"queued_out"`
	QueuedIn    int            `json:"queued_in"`
}

// Stats are counters since the start of the helper.
type Stats struct {
	usernet.Stats
	Substituted uint64            `json:"substituted"`    // connections on sockets of the host
	Lent        uint64            `json:"lent"`           // listeners on sockets of the host
	Datagram    uint64            `json:"datagram"`       // UDP sockets of the host
	Kept        map[string]uint64 `json:"kept,omitempty"` // connections on the program's own sockets, by reason
	Ledger      ledger.Usage      `json:"ledger"`
}
