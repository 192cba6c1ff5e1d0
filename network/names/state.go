package names

import (
	"maps"
	"net/netip"
	"os"
	"slices"
	"time"

	"cleat/dns"
	"cleat/internal/ledger"
)

// State describes a running server.
type State struct {
	PID      int            `json:"pid"`
	Started  time.Time      `json:"started"`
	Sealed   Sealed         `json:"sealed"`
	Networks []NetworkState `json:"networks"` // sorted by name
	Sockets  []SocketState  `json:"sockets"`  // sorted by ID
	Watchers int            `json:"watchers"`
	Learned  uint64         `json:"learned"` // events sent to watchers
	Late     uint64         `json:"late"`    // answers sent before each watcher had acknowledged
	Ledger   ledger.Usage   `json:"ledger"`  // of all forwarders
}

// NetworkState describes a network.
type NetworkState struct {
	Network                  // without endpoints
	EndpointCount int        `json:"endpoint_count"`
	NameCount     int        `json:"name_count"`          // of all names that exist, reverse ones too
	Forwarder     *dns.Stats `json:"forwarder,omitempty"` // nil: the network does not forward
}

// SocketState describes a pair of sockets. Its counters begin with Serve.
type SocketState struct {
	Socket
	Addr      netip.AddrPort `json:"addr"`
	Local     bool           `json:"local"`     // in the server's own network namespace
	Cookie    uint64         `json:"cookie"`    // of the network namespace (SO_NETNS_COOKIE); 0: unknown
	Device    int            `json:"device"`    // index of the VRF that the sockets are bound to, which may be gone; 0: none
	Answered  uint64         `json:"answered"`  // with records
	Empty     uint64         `json:"empty"`     // our name, no such record
	Unknown   uint64         `json:"unknown"`   // NXDOMAIN
	Forwarded uint64         `json:"forwarded"` // to the resolvers
	Refused   uint64         `json:"refused"`
	Invalid   uint64         `json:"invalid"`   // messages that are no valid query
	Dropped   uint64         `json:"dropped"`   // queries, answers and connections over a limit
	Truncated uint64         `json:"truncated"` // answers with only some of the records
	Streams   uint64         `json:"streams"`   // TCP connections
}

// state returns a snapshot.
func (s *server) state() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := State{PID: os.Getpid(), Started: s.started, Sealed: s.sealed, Ledger: s.ledger.Usage(), Networks: []NetworkState{}, Sockets: []SocketState{}}
	s.watchers.mu.Lock()
	st.Watchers, st.Learned, st.Late = len(s.watchers.all), s.watchers.events, s.watchers.late
	s.watchers.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.networks)) {
		n := s.networks[name]
		z := n.zone.Load()
		o := NetworkState{Network: z.cfg, EndpointCount: z.endpoints.size, NameCount: z.names.size}
		if f := n.forward.Load(); f != nil {
			stats := f.Stats()
			o.Forwarder = &stats
		}
		st.Networks = append(st.Networks, o)
	}
	for _, id := range slices.Sorted(maps.Keys(s.sockets)) {
		st.Sockets = append(st.Sockets, s.sockets[id].state())
	}
	return st
}

func (k *socket) state() SocketState {
	c := func(o outcome) uint64 { return k.counts[o].Load() }
	v := k.view.Load()
	spec := Socket{ID: k.id, OnlyOurs: v.onlyOurs}
	for _, n := range v.networks {
		spec.Networks = append(spec.Networks, n.name)
	}
	return SocketState{
		Socket: spec, Addr: k.addr, Local: k.local, Cookie: k.cookie, Device: k.device,
		Answered: c(answered), Empty: c(empty), Unknown: c(unknown), Forwarded: c(forwarded),
		Refused: c(refused), Invalid: c(invalid) + c(ignored), Dropped: c(dropped), Truncated: k.truncated.Load(), Streams: k.streams.Load(),
	}
}
