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

// Forward is a port forward by a program, as Docker's userland proxy is one: it
// accepts TCP connections and datagrams at listen and copies them to and from
// the address given. It blocks until ctx ends, which is not an error, or the
// sockets fail. TCP is copied by splice(2), which the net package does by
// itself.
func Forward(ctx context.Context, listen, to netip.AddrPort) error {
	var lc net.ListenConfig
	lc.SetMultipathTCP(false) // Docker's proxy is plain TCP, and so is what it costs
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

// connection copies both ways until both have ended. A half-close is passed
// on; a far end that can't be reached resets the near one.
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
	// How a connection ended is known to its two ends; the forward only
	// passes the end on.
	_, _ = io.Copy(to, from)
	to.CloseWrite()
}

// maxForwarded bounds the TCP connections that are copied at once; more wait in the kernel's
// queue. It is the most that a test opens: MaxStreams, for eight pairs.
const maxForwarded = 8 * MaxStreams

// maxForwardClients bounds how many senders of datagrams have a socket each;
// datagrams of others are dropped.
const maxForwardClients = 1024

// datagrams gives each sender a socket of its own toward the far end, so that
// answers find their way back.
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
			continue // an ICMP error that belongs to some earlier datagram
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
		_, _ = far.Write(buf[:n]) // lost, as datagrams may be
	}
}

// answers copies what comes back for one sender until far closes.
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
