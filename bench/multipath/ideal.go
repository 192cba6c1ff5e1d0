package multipath

import "time"

// Headers in bytes.
const (
	ethernet = 14 // as the token bucket counts it
	ipv4     = 20
	ipv6     = 40
	udp      = 8
	tcp      = 32 // with timestamps
	gre      = 8  // with sequence number (RFC 2890)
	greKey   = 4  // of our tunnel's native form, beside the sequence number
	shim     = 12 // behind it
	aead     = 16 // tag
	dss      = 24 // MPTCP: acknowledgement of 32 bits and mapping, padded (RFC 8684)

	defaultMTU = 1500
)

// Load is what travels over the links.
type Load struct {
	Network   string // a name of package catalog, role Multipath
	Datagrams bool   // UDP of MessageBytes; else TCP that fills its segments
	// MessageBytes is the payload of a datagram.
	MessageBytes int
	MTU          int  // of the links, bytes; 0: 1500
	IPv6         bool // the links' addresses
	Encrypted    bool // our tunnel has a key
	Duplicate    bool // every packet goes over all links
}

// Stretch is a part of a measurement.
type Stretch struct {
	Whole    time.Duration // of the measurement
	From, To time.Duration // since its beginning
}

// Ideal is the payload that arrives at best in a stretch of a measurement, in
// bit/s; ok is false where that is not known: links without a rate, or datagrams
// that have to be fragmented.
func (s Spec) Ideal(l Load, during Stretch) (bitsPerSec float64, ok bool) {
	share, ok := l.share()
	length := during.To - during.From
	if !ok || s.RateBitsPerSec <= 0 || length <= 0 {
		return 0, false
	}
	dead := make([]time.Duration, s.Links)
	for _, e := range s.Events(during.Whole) {
		dead[e.Link] += max(0, min(e.To, during.To)-max(e.From, during.From))
	}
	sum, most := 0.0, 0.0
	for i, link := range s.Plan() {
		rate := link.RateBitsPerSec * (1 - link.LossShare) * float64(length-dead[i]) / float64(length)
		sum, most = sum+rate, max(most, rate)
	}
	if l.Duplicate {
		sum = most
	}
	return sum * share, true
}

// share is how much of what the shaper counts is payload.
func (l Load) share() (float64, bool) {
	mtu := l.MTU
	if mtu == 0 {
		mtu = defaultMTU
	}
	ip, around := ipv4, l.encapsulation()
	if around == 0 && l.IPv6 {
		ip = ipv6
	}
	if l.Datagrams {
		packet := l.MessageBytes + udp + ip + around
		return float64(l.MessageBytes) / float64(packet+ethernet), l.MessageBytes > 0 && packet <= mtu
	}
	headers := around + ip + tcp
	if l.Network == "mptcp" {
		headers += dss
	}
	return float64(mtu-headers) / float64(mtu+ethernet), mtu > headers
}

// encapsulation is what a tunnel puts in front of each packet, in bytes.
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
