package overlay

import (
	"context"
	"encoding/json"
	"net/netip"

	"cleat/overlay/control"
	"cleat/overlay/registry"
)

// A Dataplane is this host's kernel, name server and containers. Run, Changed, Stale, Paths, Lend, Check and Traffic are
// called at any time, the other methods by one goroutine at a time.
type Dataplane interface {
	// Run does what the dataplane does by itself, until ctx ends.
	Run(ctx context.Context) error
	// Apply makes the networks and the routes to other hosts as a State says. What it does not have is removed.
	Apply(ctx context.Context, s State) error
	// SetEndpoints replaces what is known of the endpoints of other hosts on a network, by host.
	SetEndpoints(ctx context.Context, network string, hosts map[string][]registry.Endpoint) error
	// Endpoints returns this host's endpoints on networks that span hosts, without their host.
	Endpoints(ctx context.Context) ([]registry.Endpoint, error)
	// Changed receives when Endpoints may have changed.
	Changed() <-chan struct{}
	// Lend gives an address of this host's blocks to another host: a, or any of a prefix if a is not valid, or any if
	// neither is. It returns an error if a container has it. The address stays lent until Apply gets a State in which no
	// other host has it.
	Lend(ctx context.Context, network string, a netip.Addr, of netip.Prefix, host string) (netip.Addr, error)
	// Stale receives when Apply has to be called again, even with the same State.
	Stale() <-chan struct{}
	// Paths returns how containers of other hosts are reached, by host.
	Paths() map[string]Path
	// Check returns an error if this host can't have a network: a prefix is in use here.
	Check(ctx context.Context, n registry.Network) error
	// Traffic measures what passes between this host's containers and others.
	Traffic(ctx context.Context) (control.Traffic, error)
}

// A Disconnecter is a Dataplane that can disconnect a container of this host from a network that spans hosts.
type Disconnecter interface {
	Disconnect(ctx context.Context, e registry.Endpoint) error
}

// A PeerLister is a Dataplane that exchanges routes with others. Peers is safe for concurrent use.
type PeerLister interface{ Peers() []control.Peer }

// A Tunneler is a Dataplane that can join hosts by tunnels over several uplinks. TunnelKey is safe for concurrent use.
type Tunneler interface {
	// TunnelKey returns the public key of this host's ends of tunnels.
	TunnelKey() (string, error)
}

// A Remover is a Dataplane whose ways to other hosts can be removed from the kernel, while it does not run.
type Remover interface {
	Remove(ctx context.Context) error
}

// A Noter is a Dataplane that reports what it has corrected by itself. Notes is safe for concurrent use.
type Noter interface{ Notes() []string }

// An MTUKnower is a Dataplane that knows the MTU of the device that has this host's address, in bytes; 0: not yet.
// UplinkMTU is safe for concurrent use.
type MTUKnower interface{ UplinkMTU() int }

// A ProblemLister is a Dataplane that can do most of a State, but not all. Problems returns what it can't, and is called
// after Apply and SetEndpoints.
type ProblemLister interface{ Problems() []string }

// An Explainer is a Dataplane that finds out why containers do not reach each other. Explain answers a question about a
// container of this host, in JSON that only dataplanes read. ask asks another host. It is safe for concurrent use.
type Explainer interface {
	Explain(ctx context.Context, question json.RawMessage, s control.Status, ask func(ctx context.Context, host string, question json.RawMessage) (json.RawMessage, error)) (json.RawMessage, error)
}

// Path is how containers of another host are reached.
type Path struct {
	By  string // e.g. "vxlan"
	Why string
	MTU int // the size of the largest packets that pass, in bytes; 0: unknown
}

// State is what a cluster has, as one of its hosts sees it.
type State struct {
	VNI     int
	Default string // the cluster's dataplane
	// Encrypted means that WireGuard is the only way between hosts, whatever they have chosen.
	Encrypted bool
	// Pending means that the cluster is to encrypt: a host only sends with a generation (Encrypter.Sending) once it
	// has sessions with all others.
	Pending   bool
	WireGuard WireGuard
	Self      registry.Host
	Hosts     []registry.Host // the others, by name
	Networks  []NetworkState  // by name
}

// NetworkState is a network with its blocks.
type NetworkState struct {
	registry.Network
	Own    []netip.Prefix            // this host's blocks
	Remote map[string][]netip.Prefix // other hosts' blocks, by host
	Held   bool                      // no container gets an address: other hosts may have this host's blocks
	Lent   []netip.Addr              // addresses of own blocks that other hosts have, or are about to have
}
