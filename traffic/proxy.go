package traffic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

// proxyIdle is how long a UDP client may be silent until it is forgotten;
// Docker's userland proxy waits as long.
const proxyIdle = 90 * time.Second

// maxProxyClients bounds the UDP clients remembered at once.
const maxProxyClients = 1024

// Proxy listens at one address for TCP and UDP and copies everything to
// another, as a userland proxy of a published port does, until ctx ends. ready
// is called once it listens, and may be nil.
func Proxy(ctx context.Context, listen, to netip.AddrPort, ready func()) error {
	// Plain TCP: a proxy that spoke MPTCP to its clients would hide what it costs.
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	tcp, err := lc.Listen(ctx, "tcp", listen.String())
	if err != nil {
		return fmt.Errorf("start proxy: %w", err)
	}
	udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(listen.Addr(), uint16(tcp.Addr().(*net.TCPAddr).Port))))
	if err != nil {
		tcp.Close()
		return fmt.Errorf("start proxy: %w", err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer context.AfterFunc(ctx, func() { tcp.Close(); udp.Close() })()
	if ready != nil {
		ready()
	}
	wg.Go(func() { (&udpProxy{socket: udp, to: to, clients: map[netip.AddrPort]*net.UDPConn{}}).run(ctx) })
	for {
		conn, err := tcp.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			var temporary interface{ Temporary() bool }
			if errors.As(err, &temporary) && temporary.Temporary() {
				continue
			}
			return fmt.Errorf("accept: %w", err)
		}
		wg.Go(func() { proxyTCP(ctx, conn.(*net.TCPConn), to) })
	}
}

// proxyTCP copies both ways and passes on each end of a half-closed connection.
func proxyTCP(ctx context.Context, near *net.TCPConn, to netip.AddrPort) {
	defer near.Close()
	dialled, err := new(net.Dialer).DialContext(ctx, "tcp", to.String())
	if err != nil {
		near.SetLinger(0) // the client sees a reset, as if nobody listened
		return
	}
	far := dialled.(*net.TCPConn)
	defer far.Close()
	defer context.AfterFunc(ctx, func() { near.Close(); far.Close() })()
	var wg sync.WaitGroup
	wg.Go(func() { io.Copy(far, near); far.CloseWrite(); near.CloseRead() })
	wg.Go(func() { io.Copy(near, far); near.CloseWrite(); far.CloseRead() })
	wg.Wait()
}

// udpProxy keeps a socket toward the destination for each client.
type udpProxy struct {
	socket  *net.UDPConn
	to      netip.AddrPort
	mu      sync.Mutex
	clients map[netip.AddrPort]*net.UDPConn
}

func (p *udpProxy) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer p.closeAll()
	buf := make([]byte, 1<<16)
	for {
		n, from, err := p.socket.ReadFromUDPAddrPort(buf)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			continue
		}
		far, err := p.client(from, &wg)
		if err != nil {
			continue // no socket for it: lost, as datagrams may be
		}
		far.Write(buf[:n])
	}
}

// client is the socket that stands for one client.
func (p *udpProxy) client(from netip.AddrPort, wg *sync.WaitGroup) (*net.UDPConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if far := p.clients[from]; far != nil {
		return far, nil
	}
	if len(p.clients) >= maxProxyClients {
		return nil, errors.New("too many clients")
	}
	far, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(p.to))
	if err != nil {
		return nil, err
	}
	p.clients[from] = far
	wg.Go(func() { p.back(from, far) })
	return far, nil
}

// back copies answers until they stop for long or the proxy ends.
func (p *udpProxy) back(from netip.AddrPort, far *net.UDPConn) {
	defer func() {
		p.mu.Lock()
		delete(p.clients, from)
		p.mu.Unlock()
		far.Close()
	}()
	buf := make([]byte, 1<<16)
	for {
		far.SetReadDeadline(time.Now().Add(proxyIdle))
		n, err := far.Read(buf)
		switch {
		case err == nil:
			p.socket.WriteToUDPAddrPort(buf[:n], from)
		case isTimeout(err), errors.Is(err, net.ErrClosed):
			return
		}
	}
}

func (p *udpProxy) closeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, far := range p.clients {
		far.Close()
	}
}
