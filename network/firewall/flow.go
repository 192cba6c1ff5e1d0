package firewall

import "net/netip"

// Flow accepts or drops new connections of endpoints, or to endpoints, whatever their networks
// permit: from a range of addresses to another one, with a range of protocols and of destination
// ports. No two flows may have a connection in common.
//
// A protocol without ports matches if its bytes at the place of TCP's destination port are in the
// range, so its range of ports should be 0 to 65535.
type Flow struct {
	FromFirst, FromLast         netip.Addr
	ToFirst, ToLast             netip.Addr
	FirstProtocol, LastProtocol uint8 // numbers of IP protocols
	FirstPort, LastPort         uint16
	Accept                      bool // false: it is dropped
	Inbound                     bool // it comes from others than endpoints, so by another device than theirs
}

func (w Flow) validate() error {
	for _, r := range [][2]netip.Addr{{w.FromFirst, w.FromLast}, {w.ToFirst, w.ToLast}} {
		if !r[0].IsValid() || r[0].Is4() != r[1].Is4() || r[0].Is4() != w.FromFirst.Is4() || r[1].Less(r[0]) {
			return invalid("flow from %s-%s to %s-%s: two ranges of one family are needed", w.FromFirst, w.FromLast, w.ToFirst, w.ToLast)
		}
	}
	if w.LastProtocol < w.FirstProtocol || w.LastPort < w.FirstPort {
		return invalid("flow with protocols %d-%d and ports %d-%d", w.FirstProtocol, w.LastProtocol, w.FirstPort, w.LastPort)
	}
	return nil
}

// element returns the range of (source, destination, protocol, destination port).
func (w Flow) element() element {
	return element{
		key: addrKey(w.FromFirst) + addrKey(w.ToFirst) + protocolKey(w.FirstProtocol) + portKey(w.FirstPort),
		end: addrKey(w.FromLast) + addrKey(w.ToLast) + protocolKey(w.LastProtocol) + portKey(w.LastPort),
	}
}

func (w Flow) verdict() string {
	if w.Accept {
		return verdictAccept
	}
	return verdictDrop
}
