package gate

import (
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"
	"unicode"
)

const (
	maxHosts      = 256 // connections from addresses of hosts in their handshakes
	maxStrangers  = 64  // connections from other addresses, in their handshakes or joining
	maxPerAddress = 16  // of maxStrangers, from an IPv4 address or an IPv6 prefix of 64 bits
)

// places bounds the connections whose other end is not known to be a host yet. Strangers can't use up the
// places for hosts.
type places struct {
	mu               sync.Mutex
	hosts, strangers int
	from             map[netip.Addr]int // strangers, by address
}

// A place is taken by a connection until it is known to be of a host, or closed.
type place struct {
	of   *places
	from netip.Addr
	host bool // at the address of a host
}

// take returns a place for a connection from an address; nil if there is none.
func (p *places) take(from netip.Addr, host bool) *place {
	if from.Is6() {
		prefix, _ := from.WithZone("").Prefix(64)
		from = prefix.Addr()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case host && p.hosts < maxHosts:
		p.hosts++
	case !host && p.strangers < maxStrangers && p.from[from] < maxPerAddress:
		if p.from == nil {
			p.from = map[netip.Addr]int{}
		}
		p.strangers++
		p.from[from]++
	default:
		return nil
	}
	return &place{p, from, host}
}

// leave gives the place to others.
func (p *place) leave() {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if p.host {
		p.of.hosts--
		return
	}
	p.of.strangers--
	if p.of.from[p.from]--; p.of.from[p.from] == 0 {
		delete(p.of.from, p.from)
	}
}

// addressOf returns the address of the other end of a connection; the zero Addr if it has none.
func addressOf(c net.Conn) netip.Addr {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// logEvery is the least time between two lines of the log that strangers cause.
const logEvery = 10 * time.Second

// refusals decides which refused connections are logged.
type refusals struct {
	mu     sync.Mutex
	next   time.Time
	missed int
}

// due reports whether a refused connection is logged, and how many were not since the last one.
func (r *refusals) due(now time.Time) (missed int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Before(r.next) {
		r.missed++
		return 0, false
	}
	missed, r.missed, r.next = r.missed, 0, now.Add(logEvery)
	return missed, true
}

// plain returns a text that strangers may have chosen as one short line.
func plain(text string) string {
	const most = 300
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
