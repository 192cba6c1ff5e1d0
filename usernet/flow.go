package usernet

import (
	"context"
	"net"
	"net/netip"
	"time"

	"cleat/packet"
)

// Flow is a TCP connection, the datagrams between two UDP endpoints, or the echo requests
// with one identifier.
type Flow struct {
	Protocol packet.Protocol // TCP, UDP, ICMP or ICMPv6
	// Source and Destination are as the sender wrote them. For echo requests the port of
	// Source is the identifier, and the port of Destination is 0.
	Source, Destination netip.AddrPort
	Inbound             bool // the flow was opened from outside, through a Forward
}

// newFlow returns the flow between the guest and a peer.
func newFlow(proto packet.Protocol, guest, peer netip.AddrPort, inbound bool) Flow {
	if inbound {
		guest, peer = peer, guest
	}
	return Flow{proto, guest, peer, inbound}
}

// Action is what to do with a flow.
type Action uint8

// The actions. The zero Action allows the flow.
const (
	Allow    Action = iota // connect it to its destination
	Redirect               // connect it to Verdict.To instead; the guest does not notice
	Refuse                 // answer with RST for TCP, else with ICMP "administratively prohibited"
	Drop                   // do not answer
	Use                    // carry it over Verdict.Conn
)

// Verdict is a decision about a flow.
type Verdict struct {
	Action Action
	To     netip.AddrPort // for Redirect; the port is ignored for echo requests
	// Conn carries the flow's bytes for Use, and is closed with the flow. For TCP it is a
	// stream. For UDP each Write is one datagram from the guest, each Read one to the
	// guest, and io.EOF ends the flow. A Conn for UDP that is an io.WriterTo is not read:
	// its WriteTo passes each datagram to the guest in one Write, so the Stack needs no
	// buffer of 64 KiB. Echo requests can't use a Conn.
	Conn net.Conn
	// Idle is the timeout of a UDP flow without datagrams; 0: the Stack's default.
	Idle time.Duration
}

// Policy decides about each new flow before anything of it leaves.
type Policy interface {
	// Judge is called concurrently from the Stack's threads, one for each queue, and must
	// not block. It sees outbound flows, and inbound flows through a Forward. The host has
	// accepted an inbound connection already: Refuse and Drop both reset it, and other
	// actions count as Allow. An inbound UDP flow that is refused is dropped.
	Judge(Flow) Verdict
}

// Hook is called for each outbound flow that Policy has allowed or redirected, in a
// goroutine of its own. It may block, for instance to dial through a proxy. ctx ends with
// the flow or the Stack. The zero Verdict keeps Policy's decision.
type Hook func(ctx context.Context, f Flow) Verdict

// Forward makes a port of the host lead to a port of the guest.
type Forward struct {
	Protocol packet.Protocol // TCP or UDP
	// Listen is the host's address and port. An invalid or unspecified address means all
	// addresses, including those of IPv6 if Listen is invalid or "::". Port 0 takes any
	// free port.
	Listen netip.AddrPort
	// Interface limits the listener to one link (SO_BINDTODEVICE); "": all links.
	Interface string
	// To is the guest's address and port. An invalid or unspecified address means the
	// guest's address of the client's family. Port 0 means the port of Listen.
	To netip.AddrPort
}

// Tier is the path of a flow's bytes between guest and host.
type Tier string

// The tiers.
const (
	TierTUN    Tier = "tun"    // packets through the device
	TierSplice Tier = "splice" // between two sockets, one of them in the guest's namespace
)

// FlowInfo describes an open flow.
type FlowInfo struct {
	Flow
	Host      netip.AddrPort `json:"host"`          // the other end on the host's side, after redirection
	State     string         `json:"state"`         // e.g. "connecting", "established", "closing"
	Tier      Tier           `json:"tier"`          // how its bytes move
	Why       string         `json:"why,omitempty"` // why not in a faster tier, if there is a reason to report
	Started   time.Time      `json:"started"`
	OutBytes  uint64         `json:"out_bytes"`  // payload from the guest that the host's socket has taken
	InBytes   uint64         `json:"in_bytes"`   // payload from the host's socket that was written to the guest
	QueuedOut int            `json:"queued_out"` // bytes from the guest that the host's socket has not taken yet
	QueuedIn  int            `json:"queued_in"`  // bytes sent to the guest and not acknowledged yet
}
