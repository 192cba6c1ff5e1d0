package bgp

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
)

// CheckEvery sets the interval between full syncs. It is called before Run.
func (s *Speaker) CheckEvery(d time.Duration) { s.check = d }

// RouteText returns a route in words.
func RouteText(r netlink.Route, family int) string {
	e := parse(r, family)
	text := []string{e.to.String()}
	for _, h := range e.hops {
		if h.addr.IsValid() {
			text = append(text, "via "+h.addr.String())
		}
	}
	if e.source.IsValid() {
		text = append(text, fmt.Sprintf("src %s", e.source))
	}
	return strings.Join(text, " ")
}

// Accepts is accepts.
func (f *Filter) Accepts(p netip.Prefix, peers []Peer) (netip.Addr, bool) { return f.accepts(p, peers) }
