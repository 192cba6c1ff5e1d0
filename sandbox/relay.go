package sandbox

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Limits of one port inside that leads to the host. The guest is the client, and
// hostile: what it opens costs descriptors and goroutines on the host.
const (
	maxRelayed  = 1024             // connections or UDP clients at once; more are reset or dropped
	relayDial   = 10 * time.Second // loopback answers at once, or not at all
	relayIdle   = 2 * time.Minute  // a UDP client without a datagram either way (nf_conntrack_udp_timeout_stream)
	maxDatagram = 65535
)

// tcpRelay passes connections on. Between two TCP sockets io.Copy is splice(2).
type tcpRelay struct {
	listener *net.TCPListener
	to       netip.AddrPort
}

func (r *tcpRelay) close() { r.listener.Close() }

func (r *tcpRelay) run(ctx context.Context) error {
	defer context.AfterFunc(ctx, r.close)()
	var wg sync.WaitGroup
	defer wg.Wait()
	room := make(chan struct{}, maxRelayed)
	for {
		c, err := r.listener.AcceptTCP()
		if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
			if err == nil {
				c.Close()
			}
			return nil
		}
		if err != nil {
			// Out of descriptors, as a rule: some will come back.
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		select {
		case room <- struct{}{}:
			wg.Go(func() { r.carry(ctx, c); <-room })
		default:
			reset(c)
		}
	}
}

func reset(c *net.TCPConn) {
	_ = c.SetLinger(0) // it is closed next anyway
	c.Close()
}

func (r *tcpRelay) carry(ctx context.Context, inside *net.TCPConn) {
	d := net.Dialer{Timeout: relayDial}
	c, err := d.DialContext(ctx, "tcp", r.to.String())
	if err != nil {
		reset(inside)
		return
	}
	host := c.(*net.TCPConn)
	defer context.AfterFunc(ctx, func() { inside.Close(); host.Close() })()
	var wg sync.WaitGroup
	wg.Go(func() { pass(host, inside) })
	pass(inside, host)
	wg.Wait()
	inside.Close()
	host.Close()
}

// pass copies one direction to its end, and passes that on too: a FIN as a FIN,
// an error as a reset.
func pass(to, from *net.TCPConn) {
	if _, err := io.Copy(to, from); err != nil {
		reset(to)
		reset(from)
		return
	}
	_ = to.CloseWrite() // fails where the other direction has closed it
}

// udpRelay passes datagrams on, with a socket of the host for each client.
type udpRelay struct {
	conn *net.UDPConn
	to   netip.AddrPort

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
	if len(r.clients) >= maxRelayed {
		return nil
	}
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(r.to))
	if err != nil {
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
