package sandbox

import (
	"context"

	"cleat/internal/ledger"
	"cleat/packet"
	"cleat/policy"
	"cleat/sandbox/supervisor"
	"cleat/usernet"
)

// Types of other packages, so that users need to import only this one.
type (
	// Flow is one conversation: a TCP connection, the datagrams between two UDP endpoints, or
	// the echo requests with one identifier.
	Flow = usernet.Flow
	// Verdict decides about a flow. The zero Verdict allows it.
	Verdict = usernet.Verdict
	// Action is what a Verdict does.
	Action = usernet.Action
	// Policy judges each new flow before any packet of it leaves. Judge must not block. It
	// sees destinations as the guest sent them, before mappings apply. It is not called for
	// flows that a default denial refuses, or that go to the network's resolver.
	Policy = usernet.Policy
	// Forward makes a port of the host lead to a port of the guest.
	Forward = usernet.Forward
	// FlowInfo describes a current flow.
	FlowInfo = usernet.FlowInfo
	// Limits bound what a hostile guest can cost. Zero fields have defaults.
	Limits = usernet.Limits
	// Decision is a policy's decision about a flow, with the rule and the reason.
	Decision = policy.Decision
	// Tier is a way to carry TCP connections.
	Tier = usernet.Tier
	// Protocol is an IP protocol number.
	Protocol = packet.Protocol
	// SupervisorStats are counters of the seccomp tier.
	SupervisorStats = supervisor.Stats
	// LedgerUsage is the current use of the resources that Config.Limits bounds.
	LedgerUsage = ledger.Usage
)

// Stats are counters since the start.
type Stats struct {
	usernet.Stats
	// Supervisor are the counters of the seccomp tier, zero in others.
	Supervisor SupervisorStats `json:"supervised"`
	// Ledger is what the guest makes this process spend: descriptors, memory, goroutines.
	Ledger LedgerUsage `json:"ledger"`
}

// The actions of a Verdict.
const (
	Allow    = usernet.Allow    // carry the flow to its destination
	Redirect = usernet.Redirect // carry it to Verdict.To instead; the guest does not notice
	Refuse   = usernet.Refuse   // answer with RST for TCP, else with ICMP "administratively prohibited"
	Drop     = usernet.Drop     // do not answer
	Use      = usernet.Use      // carry it over Verdict.Conn
)

// The tiers of Config and FlowInfo.
const (
	// TierAuto is the fastest tier that the kernel and the namespace support. It is
	// TierSeccomp only with Wrap, and only if Config.Policy is a *policy.Policy whose
	// HostSockets allow it.
	TierAuto Tier = ""
	// TierTUN carries packets of the device.
	TierTUN = usernet.TierTUN
	// TierSplice terminates connections in the guest's kernel, at sockets in its namespace,
	// and splices bytes between those and the host's sockets. Connections that the
	// namespace's own rules lead elsewhere take the device.
	TierSplice = usernet.TierSplice
	// TierSeccomp connects on behalf of the command, and gives it the host's socket. Other
	// connections take TierSplice. Package sandbox/supervisor documents what it guarantees.
	TierSeccomp Tier = "seccomp"
)

// The protocols of a Flow.
const (
	TCP    = packet.TCP
	UDP    = packet.UDP
	ICMP   = packet.ICMP
	ICMPv6 = packet.ICMPv6
)

// A NamePolicy is a Policy that also considers names. If Config.Policy is one, JudgeNamed is
// called instead of Judge. names are those that the guest looked up with the network's
// resolver and that led to the destination, in lower case and without the final dot, the
// latest first; nil if there are none. JudgeNamed must not block and must not keep names. Like
// Judge, it is called by several threads at once.
type NamePolicy interface {
	Policy
	JudgeNamed(f Flow, names []string) Verdict
}

// A Hook is called for each outbound TCP or UDP flow that the Policy allows, in a goroutine of
// its own. It may block, for instance to dial through a proxy. It may refuse the flow,
// redirect it, or return its own connection (Use). The zero Verdict keeps the Policy's. names
// are as for NamePolicy. ctx ends with the flow or the Network.
type Hook func(ctx context.Context, f Flow, names []string) Verdict
