package sandbox

import (
	"context"

	"cleat/internal/ledger"
	"cleat/packet"
	"cleat/policy"
	"cleat/sandbox/supervisor"
	"cleat/usernet"
)

// The nouns of flows, so that users need import this package alone.
type (
	// Flow is one conversation: a TCP connection, the datagrams between two UDP
	// endpoints, or the echo requests with one identifier.
	Flow = usernet.Flow
	// Verdict says what becomes of a flow. The zero Verdict lets it through.
	Verdict = usernet.Verdict
	// Action is what a Verdict does.
	Action = usernet.Action
	// Policy judges each new flow before anything of it leaves. Judge must not
	// block. It sees destinations as the guest wrote them, and only those that
	// no mapping of the Config and no default denial has dealt with before.
	Policy = usernet.Policy
	// Forward makes a port of the host lead to a port of the guest.
	Forward = usernet.Forward
	// FlowInfo describes a living flow.
	FlowInfo = usernet.FlowInfo
	// Limits bound what a hostile guest can cost. Zero fields take the default.
	Limits = usernet.Limits
	// Decision says which rule decided about a flow, and why.
	Decision = policy.Decision
	// Tier is a way in which a TCP connection's bytes move.
	Tier = usernet.Tier
	// Protocol is an IP protocol number.
	Protocol = packet.Protocol
)

// Stats are counters since the start.
type Stats struct {
	usernet.Stats
	// Supervised are those of the seccomp tier, zero elsewhere.
	Supervisor SupervisorStats `json:"supervised"`
	// Ledger is what the guest makes the helper spend: descriptors, memory, goroutines.
	Ledger LedgerUsage `json:"ledger"`
}

// SupervisorStats are counters of the seccomp tier.
type SupervisorStats = supervisor.Stats

// LedgerUsage is the state of the account that Config.Limits bounds.
type LedgerUsage = ledger.Usage

// The actions of a Verdict.
const (
	Allow    = usernet.Allow    // to its destination
	Redirect = usernet.Redirect // to Verdict.To instead; the guest notices nothing
	Refuse   = usernet.Refuse   // RST for TCP, ICMP "administratively prohibited" otherwise
	Drop     = usernet.Drop     // no answer
	Use      = usernet.Use      // carried over Verdict.Conn
)

// The tiers of Config and FlowInfo.
const (
	// TierAuto is the fastest that this kernel and the namespace allow: TierSeccomp
	// only where Config.Policy is a *policy.Policy whose HostSockets lets it, and for
	// Wrap.
	TierAuto Tier = ""
	// TierTUN carries packets of the device.
	TierTUN = usernet.TierTUN
	// TierSplice has the guest's kernel end connections at sockets of its own
	// namespace, and moves bytes between those and the host's. A connection that
	// the namespace's own rules lead elsewhere takes the device.
	TierSplice = usernet.TierSplice
	// TierSeccomp has the command's connections made on its behalf, by sockets of
	// the host's that it is handed; those that can't be take TierSplice. Package
	// sandbox/supervisor says what it guarantees, and what not.
	TierSeccomp Tier = "seccomp"
)

// The protocols of a Flow.
const (
	TCP    = packet.TCP
	UDP    = packet.UDP
	ICMP   = packet.ICMP
	ICMPv6 = packet.ICMPv6
)

// A NamePolicy is a Policy that judges by names too: where Config.Policy is one,
// JudgeNamed is called in place of Judge. names are those that the guest looked
// up with the network's resolver and that led to the destination, as they were
// asked for (lower case, without the final dot), the latest first; nil when
// there are none. JudgeNamed must not block, must not keep names, and is called
// by several threads at once, as Judge is.
type NamePolicy interface {
	Policy
	JudgeNamed(f Flow, names []string) Verdict
}

// A Hook is asked, after the Policy has let an outbound TCP or UDP flow through,
// in a goroutine of its own: it may block, for instance to dial through a proxy.
// It may refuse the flow, redirect it, or hand back its own connection (Use);
// the zero Verdict keeps to what the Policy said. names are as for NamePolicy.
// ctx ends with the flow or the Network.
type Hook func(ctx context.Context, f Flow, names []string) Verdict
