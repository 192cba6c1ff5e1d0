package traffic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"

	"cleat/internal/localsock"
)

// Forward forwards a port in user space, as Docker's userland proxy does: it accepts TCP
// connections and datagrams at listen and copies them to and from the address to. It
// blocks until ctx ends, which is not an error, or the sockets fail. The net package
// copies TCP by splice(2).
func Forward(ctx context.Context, listen, to netip.AddrPort) error {
	var lc net.ListenConfig
	lc.SetMultipathTCP(false) // like Docker's proxy, use plain TCP
	l, err := lc.Listen(ctx, "tcp", listen.String())
	if err != nil {
		return fmt.Errorf("forward port: %w", err)
	}
	defer l.Close()
	u, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(listen))
	if err != nil {
		return fmt.Errorf("forward port: %w", err)
	}
	defer u.Close()
	defer context.AfterFunc(ctx, func() { l.Close(); u.Close() })()

	f := forwarder{to: to}
	var running sync.WaitGroup
	running.Go(func() { f.datagrams(ctx, u) })
	err = f.connections(ctx, l, &running)
	u.Close()
	running.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

type forwarder struct{ to netip.AddrPort }

func (f forwarder) connections(ctx context.Context, l net.Listener, running *sync.WaitGroup) error {
	places := make(chan struct{}, maxForwarded)
	for {
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		c, err := localsock.Accept(ctx, l.Accept)
		if err != nil {
			return fmt.Errorf("accept a connection to forward: %w", err)
		}
		running.Go(func() {
			f.connection(ctx, c.(*net.TCPConn))
			<-places
		})
	}
}

// connection copies both ways until both directions have ended. It passes on a
// half-close. If the far end can't be reached, it resets the near one.
func (f forwarder) connection(ctx context.Context, near *net.TCPConn) {
	defer near.Close()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", f.to.String())
	if err != nil {
		near.SetLinger(0)
		return
	}
	far := c.(*net.TCPConn)
	defer far.Close()
	defer context.AfterFunc(ctx, func() { near.Close(); far.Close() })()
	var back sync.WaitGroup
	back.Go(func() { copyHalf(near, far) })
	copyHalf(far, near)
	back.Wait()
}

func copyHalf(to, from *net.TCPConn) {
	// The two ends know how a connection ended; the forward only passes the end on.
	_, _ = io.Copy(to, from)
	to.CloseWrite()
}

// maxForwarded limits the TCP connections that are copied at once; more wait in the
// kernel's queue. A test opens no more: MaxStreams, for eight pairs.
const maxForwarded = 8 * MaxStreams

// maxForwardClients limits the senders of datagrams; datagrams of further ones are
// dropped.
const maxForwardClients = 1024

// datagrams gives each sender its own socket toward the far end, so that answers find
// their way back.
func (f forwarder) datagrams(ctx context.Context, near *net.UDPConn) {
	clients := map[netip.AddrPort]*net.UDPConn{}
	var back sync.WaitGroup
	defer back.Wait()
	defer func() {
		for _, far := range clients {
			far.Close()
		}
	}()
	buf := make([]byte, 64<<10)
	for {
		n, from, err := near.ReadFromUDPAddrPort(buf)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			continue // an ICMP error for an earlier datagram
		}
		far := clients[from]
		if far == nil {
			if len(clients) >= maxForwardClients {
				continue
			}
			c, err := (&net.Dialer{}).DialContext(ctx, "udp", f.to.String())
			if err != nil {
				continue
			}
			far = c.(*net.UDPConn)
			clients[from] = far
			back.Go(func() { answers(near, from, far) })
		}
		_, _ = far.Write(buf[:n]) // an error loses the datagram, as a network may
	}
}

// answers copies answers to one sender until far closes.
func answers(near *net.UDPConn, sender netip.AddrPort, far *net.UDPConn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := far.Read(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			_, _ = near.WriteToUDPAddrPort(buf[:n], sender)
		}
	}
}
