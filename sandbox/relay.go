package sandbox

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"cleat/internal/ledger"
)

// Limits of one UDP port inside that leads to the host. The guest is the client, and hostile:
// what it opens costs descriptors, memory and goroutines.
const (
	maxRelayed  = 1024            // clients at once; datagrams of more are dropped
	relayIdle   = 2 * time.Minute // a client without a datagram either way (nf_conntrack_udp_timeout_stream)
	maxDatagram = 65535
)

// clientCost is a client's socket, and the goroutine and buffer for what comes back.
var clientCost = ledger.Cost{Descriptors: 1, Bytes: maxDatagram + 8<<10, Goroutines: 1}

// udpRelay passes datagrams on, with a socket of the host for each client.
type udpRelay struct {
	conn   *net.UDPConn
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
	defer r.closeClients()
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
			// Deadlines of both directions: see reply.
			_ = host.SetReadDeadline(time.Now().Add(relayIdle))
			_, _ = host.Write(buf[:n]) // refused: as lost as any datagram
		}
	}
}

func (r *udpRelay) closeClients() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.clients {
		c.Close()
	}
}

// client is the host's socket for a client inside, made at its first datagram;
// nil: there is no room.
func (r *udpRelay) client(wg *sync.WaitGroup, from netip.AddrPort) *net.UDPConn {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.clients[from]; c != nil {
		return c
	}
	if len(r.clients) >= maxRelayed || !r.ledger.Charge(clientCost) {
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

// reply passes back what the host says, until nothing came in either direction
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
		var timeout net.Error
		switch {
		case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			continue // refused, for now
		}
		_ = c.SetReadDeadline(time.Now().Add(relayIdle))
		_, _ = r.conn.WriteToUDPAddrPort(buf[:n], to)
	}
}
