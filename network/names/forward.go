package names

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"cleat/dns"

	"golang.org/x/net/dns/dnsmessage"
)

// retireAfter is how long a forwarder that was replaced goes on, to finish the queries in
// progress. Package dns gives up on a query after 20 s at most.
const retireAfter = 20 * time.Second

// forwarder forwards the foreign queries of a network.
type forwarder struct {
	*dns.Forwarder
	upstream []netip.AddrPort
	stop     context.CancelFunc
}

// newForwarder starts a forwarder.
func (s *server) newForwarder(upstream []netip.AddrPort) (*forwarder, error) {
	d, err := dns.New(dns.Config{Servers: upstream, ResolvConf: s.cfg.openResolvConf, Skip: s.isOwn, Ledger: s.ledger})
	if err != nil {
		return nil, err
	}
	f := &forwarder{Forwarder: d, upstream: slices.Clone(upstream)}
	ctx, stop := context.WithCancel(s.ctx)
	f.stop = stop
	s.wg.Go(func() { _ = f.Run(ctx) })
	return f, nil
}

// retire lets the queries in progress finish. The end of the server ends them, too.
func (f *forwarder) retire() { time.AfterFunc(retireAfter, f.stop) }

// forward forwards a query. If it returns forwarded, done is called once with the answer
// behind its length, or with nil if there is none. Otherwise the reply is the answer.
func (k *socket) forward(msg []byte, stream bool, client netip.Addr, done func(frame []byte)) (reply, outcome) {
	if k.local && client.WithZone("") == k.addr.Addr() { // the host's resolver: this would be a loop
		return reply{code: dnsmessage.RCodeRefused}, refused
	}
	n, f := forwarderOf(k.view.Load().networks)
	if f == nil { // gone since
		return reply{code: dnsmessage.RCodeNameError}, unknown
	}
	if !k.reserve(k.inFlight, client, maxForwarded) {
		return reply{}, dropped
	}
	ok := f.Submit(msg, stream, func(frame []byte, l dns.Learned) {
		k.release(k.inFlight, client)
		if len(l.Addrs) > 0 {
			k.server.watchers.tell(k.server.ctx, n.name, client, l)
		}
		done(frame)
	})
	if !ok {
		k.release(k.inFlight, client)
		return reply{}, dropped
	}
	return reply{}, forwarded
}

// reserve counts something of a client's in used, and reports whether the limit permits it.
func (k *socket) reserve(used map[netip.Addr]int, client netip.Addr, limit int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if used[client] >= limit {
		return false
	}
	used[client]++
	return true
}

func (k *socket) release(used map[netip.Addr]int, client netip.Addr) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if used[client]--; used[client] == 0 {
		delete(used, client)
	}
}
