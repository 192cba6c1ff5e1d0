package bgp

import (
	"net/netip"
	"slices"
)

// inherited is the routes of an earlier speaker in the sink. They stay until all peers have sent theirs (RFC 4724,
// section 4.1). nil: there are none.
type inherited struct {
	peers []Peer
	heard map[netip.Prefix]bool // prefixes that peers have announced to this speaker: what they say of them now counts
}

// newInherited returns what a speaker finds when it starts.
func newInherited(c *Config) *inherited {
	if !c.Restarting {
		return nil
	}
	return &inherited{c.Peers, map[netip.Prefix]bool{}}
}

// hear notes that a prefix was announced.
func (i *inherited) hear(p netip.Prefix) {
	if i != nil {
		i.heard[p] = true
	}
}

// stays returns a function that reports whether a route stays that no peer announces now.
func (i *inherited) stays(f *Filter) func(Route) bool {
	if i == nil {
		return nil
	}
	return func(r Route) bool {
		if i.heard[r.Prefix] || r.Prefix.Bits() == 0 && !slices.ContainsFunc(i.peers, func(p Peer) bool { return p.Default }) {
			return false
		}
		if slices.ContainsFunc(r.Hops, func(a netip.Addr) bool { return slices.Contains(f.Gone, a) }) {
			return false
		}
		_, ok := f.accepts(r.Prefix, i.peers)
		return ok
	}
}
