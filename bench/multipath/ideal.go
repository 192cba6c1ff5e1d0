package multipath

import (
	"cmp"
	"time"
)

// Headers in bytes.
const (
	ethernet = 14 // as the token bucket counts it
	ipv4     = 20
	ipv6     = 40
	udp      = 8
	tcp      = 32 // with timestamps
	gre      = 8  // with sequence number (RFC 2890)
	greKey   = 4  // of our tunnel's native form, beside the sequence number
	shim     = 12 // after the GRE header
	aead     = 16 // authentication tag
	dss      = 24 // MPTCP: acknowledgement of 32 bits and mapping, padded (RFC 8684)

	defaultMTU = 1500
)

// Load describes the traffic over the links.
type Load struct {
	Network      string // a name of package catalog, role Multipath
	Datagrams    bool   // UDP; else TCP with full segments
	MessageBytes int    // payload of a datagram
	MTU          int    // of the links, bytes; 0: 1500
	IPv6         bool   // of the links' addresses
	Encrypted    bool   // our tunnel has a key
	Duplicate    bool   // every packet is sent over all links
}

// Interval is a part of a measurement.
type Interval struct {
	Whole    time.Duration // duration of the measurement
	From, To time.Duration // since the measurement began
}

// Ideal returns the highest possible rate of payload in an interval of a measurement, in
// bit/s. It reports false if that is unknown: for unshaped links, and for datagrams that
// have to be fragmented.
func (s Spec) Ideal(l Load, during Interval) (bitsPerSec float64, ok bool) {
	share, ok := l.payloadShare()
	length := during.To - during.From
	if c, isCase := s.Case(); isCase && ok && length > 0 {
		return caseRate(c, during.From, during.To) * share, true
	}
	if !ok || s.RateBitsPerSec <= 0 || length <= 0 {
		return 0, false
	}
	dead := make([]time.Duration, s.Links)
	for _, e := range s.Events(during.Whole) {
		dead[e.Link] += max(0, min(e.To, during.To)-max(e.From, during.From))
	}
	sum, best := 0.0, 0.0
	for i, link := range s.Plan() {
		rate := link.RateBitsPerSec * (1 - link.LossShare) * float64(length-dead[i]) / float64(length)
		sum, best = sum+rate, max(best, rate)
	}
	if l.Duplicate {
		sum = best
	}
	return sum * share, true
}

// payloadShare returns the share of payload in what the shaper counts.
func (l Load) payloadShare() (float64, bool) {
	mtu := cmp.Or(l.MTU, defaultMTU)
	ip, encapsulation := ipv4, l.encapsulation()
	if encapsulation == 0 && l.IPv6 {
		ip = ipv6
	}
	if l.Datagrams {
		packet := l.MessageBytes + udp + ip + encapsulation
		return float64(l.MessageBytes) / float64(packet+ethernet), l.MessageBytes > 0 && packet <= mtu
	}
	headers := encapsulation + ip + tcp
	if l.Network == "mptcp" {
		headers += dss
	}
	return float64(mtu-headers) / float64(mtu+ethernet), mtu > headers
}

// encapsulation returns the length of the headers that a tunnel adds to each packet, in
// bytes.
func (l Load) encapsulation() int {
	outer := ipv4 + udp
	if l.IPv6 {
		outer = ipv6 + udp
	}
	switch l.Network {
	case "tunnel":
		if l.Encrypted {
			return outer + gre + greKey + shim + aead
		}
		return outer + gre + greKey + shim
	case "mpt":
		return outer + gre
	case "mlvpn", "glorytun":
		return outer
	}
	return 0
}
