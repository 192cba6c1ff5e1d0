package tunnel

import (
	"net/netip"
	"slices"

	"cleat/packet"
)

// sourceFilter holds the networks that inner packets may come from. An attacker who controls
// the other end may want to impersonate other hosts towards ours, so packets from any other
// address are dropped. A sourceFilter is immutable. nil allows all sources.
type sourceFilter struct{ v4, v6 []netip.Prefix }

// linkLocal is always allowed: such addresses are valid on one link only and never
// forwarded.
var linkLocal = netip.MustParsePrefix("fe80::/10")

// SetSources changes Config.Sources.
func (t *Tunnel) SetSources(from []netip.Prefix) { t.sources.Store(newSourceFilter(from)) }

// newSourceFilter returns the filter for a list of prefixes, or nil for nil.
func newSourceFilter(from []netip.Prefix) *sourceFilter {
	if from == nil {
		return nil
	}
	f := &sourceFilter{v6: []netip.Prefix{linkLocal}}
	for _, p := range from {
		if p.Addr().Is4() {
			f.v4 = append(f.v4, p)
		} else {
			f.v6 = append(f.v6, p)
		}
	}
	return f
}

// admit reports whether the source address of an inner packet is allowed. A malformed packet
// is not.
func (f *sourceFilter) admit(pkt []byte) bool {
	var source netip.Addr
	var allowed []netip.Prefix
	switch {
	case f == nil:
		return true
	case len(pkt) >= packet.IPv4Bytes && pkt[0]>>4 == 4:
		source, allowed = netip.AddrFrom4([4]byte(pkt[12:])), f.v4
	case len(pkt) >= packet.IPv6Bytes && pkt[0]>>4 == 6:
		source, allowed = netip.AddrFrom16([16]byte(pkt[8:])), f.v6
	}
	return slices.ContainsFunc(allowed, func(p netip.Prefix) bool { return p.Contains(source) })
}
