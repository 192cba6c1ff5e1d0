package usernet

import (
	"context"
	"net"
	"net/netip"
	"time"

	"cleat/packet"
)

// Flow is one conversation: a TCP connection, the datagrams between two UDP
// endpoints, or the echo requests with one identifier.
type Flow struct {
	Protocol packet.Protocol // TCP, UDP, ICMP or ICMPv6
	// Source and Destination are as the sender wrote them. The port of an echo
	// request is its identifier on the source's side and 0 on the other.
	Source, Destination netip.AddrPort
	Inbound             bool // began outside, by a Forward
}

// Action is what becomes of a flow.
type Action uint8

// The actions. The zero Action lets the flow through.
const (
	Allow    Action = iota // to its destination
	Redirect               // to Verdict.To instead; the guest notices nothing
	Refuse                 // RST for TCP, ICMP "administratively prohibited" otherwise
	Drop                   // no answer
	Use                    // carried over Verdict.Conn
)

// Verdict says what becomes of a flow.
type Verdict struct {
	Action Action
	To     netip.AddrPort // Redirect; for echo requests the port is ignored
	// Conn carries the flow's bytes for Use, and is closed with the flow: a
	// stream for TCP; for UDP each Write is one datagram from the guest and
	// each Read one toward it, and io.EOF ends the flow. Not for echo requests.
	Conn net.Conn
	// Idle ends a UDP flow after so long without a datagram; 0: the Stack's
	// default.
	Idle time.Duration
}

// Policy judges each new flow before anything of it leaves.
type Policy interface {
	// Judge is called by the Stack's threads, one for each queue, at once: it must
	// be safe for that, and must not block. It sees outbound flows, and inbound
	// ones whose Forward was set up before.
	Judge(Flow) Verdict
}

// A Hook is asked, after a Policy has let an outbound flow through (Allow,
// Redirect), in a goroutine of its own: it may block, for instance to dial
// through a proxy. ctx ends with the flow or the Stack. Returning the zero
// Verdict keeps to what the Policy said.
type Hook func(ctx context.Context, f Flow) Verdict

// Forward makes a port of the host lead to a port of the guest.
type Forward struct {
	Protocol packet.Protocol // TCP or UDP
	// Listen is where on the host; an invalid or unspecified address means all
	// addresses, IPv6's too where Listen is invalid or "::". Port 0 takes any
	// free port.
	Listen netip.AddrPort
	// Interface limits the listener to one link (SO_BINDTODEVICE); "": any.
	Interface string
	// To is the guest's address and port. An invalid address is the guest's own
	// of the client's family.
	To netip.AddrPort
}

// Tier is a way in which bytes move.
type Tier string

// The tiers.
const (
	TierTUN    Tier = "tun"    // as packets of the device
	TierSplice Tier = "splice" // between two sockets, one of them in the guest's namespace
)

// FlowInfo describes a living flow.
type FlowInfo struct {
	Flow
	Host      netip.AddrPort `json:"host"`          // the other end on the host's side, after redirection
	State     string         `json:"state"`         // e.g. "connecting", "established", "closing"
	Tier      Tier           `json:"tier"`          // how its bytes move
	Why       string         `json:"why,omitempty"` // and why not in a faster way, where there is something to say
	Started   time.Time      `json:"started"`
	OutBytes  uint64         `json:"out_bytes"` // payload from the guest that reached the host's socket
	InBytes   uint64         `json:"in_bytes"`  // payload from the host's socket that was written to the guest
	QueuedOut int            `json:"queued_out"`
	QueuedIn  int            `json:"queued_in"` // bytes sent to the guest and not yet acknowledged
}
