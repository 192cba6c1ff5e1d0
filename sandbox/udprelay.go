package sandbox

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"cleat/internal/ledger"
)

// Limits of one UDP reverse forward. The guest is the client and hostile: what it opens costs
// descriptors, memory and goroutines.
const (
	maxRelayClients = 1024            // at once; datagrams of further ones are dropped
	relayIdle       = 2 * time.Minute // until a client without datagrams is forgotten (nf_conntrack_udp_timeout_stream)
	maxDatagram     = 65535
)

// clientCost is the cost of a client: its socket, and the goroutine and buffer for replies.
var clientCost = ledger.Cost{Descriptors: 1, Bytes: maxDatagram + 8<<10, Goroutines: 1}

// udpRelay passes datagrams to an address of the host, with a socket for each client.
type udpRelay struct {
	conn   *net.UDPConn // in the namespace
	to     netip.AddrPort
	ledger *ledger.Ledger

	mu      sync.Mutex
	clients map[netip.AddrPort]*net.UDPConn
}

func (r *udpRelay) close() { r.conn.Close() }

func (r *udpRelay) run(ctx context.Context) error {
	var wg sync.WaitGroup
	r.clients = map[netip.AddrPort]*net.UDPConn{}
	defer wg.Wait()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, c := range r.clients {
			c.Close()
		}
	}()
	defer context.AfterFunc(ctx, r.close)()
	buf := make([]byte, maxDatagram)
	for {
		n, from, err := r.conn.ReadFromUDPAddrPort(buf)
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case err != nil: // an ICMP error for a reply
			continue
		}
		if host := r.client(&wg, from); host != nil {
			_ = host.SetReadDeadline(time.Now().Add(relayIdle)) // reply extends it as well
			_, _ = host.Write(buf[:n])                          // a refused datagram is lost, as any may be
		}
	}
}

// client returns the host's socket for a client, opened for its first datagram. It returns nil
// if a limit is reached.
func (r *udpRelay) client(wg *sync.WaitGroup, from netip.AddrPort) *net.UDPConn {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.clients[from]; c != nil {
		return c
	}
	if len(r.clients) >= maxRelayClients || !r.ledger.Charge(clientCost) {
		return nil
	}
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(r.to))
	if err != nil {
		r.ledger.Refund(clientCost)
		return nil
	}
	r.clients[from] = c
	wg.Go(func() { r.reply(c, from) })
	return c
}

// reply passes the host's datagrams back to a client, until there was none in either direction
// for relayIdle.
func (r *udpRelay) reply(c *net.UDPConn, to netip.AddrPort) {
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.clients, to)
		c.Close()
		r.ledger.Refund(clientCost)
	}()
	buf := make([]byte, maxDatagram)
	for {
		n, err := c.Read(buf)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			continue // nobody listens there at the moment
		}
		_ = c.SetReadDeadline(time.Now().Add(relayIdle))
		_, _ = r.conn.WriteToUDPAddrPort(buf[:n], to)
	}
}
