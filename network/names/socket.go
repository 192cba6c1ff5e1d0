package names

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"

	"cleat/dns"
	"cleat/internal/localsock"
	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

const (
	// batchSize is the number of queries received by one system call. Larger batches cost
	// latency: the first answer waits for the last.
	batchSize = 32
	// maxForwarded limits the forwarded queries in progress of each client of a socket. A
	// forwarder has 128 in progress and 512 waiting, for all clients.
	maxForwarded = 64
)

// socket is a pair of sockets that is served.
type socket struct {
	server *server
	id     string
	local  bool   // in the host's network namespace
	cookie uint64 // of the network namespace; 0: unknown
	device int    // index of the device that the sockets are bound to; 0: none
	addr   netip.AddrPort
	udp    *net.UDPConn
	tcp    *net.TCPListener
	end    *os.File // pidfd of the process with which the sockets are closed; nil: none
	view   atomic.Pointer[view]

	counts    [outcomes]atomic.Uint64
	truncated atomic.Uint64
	streams   atomic.Uint64 // accepted

	mu       sync.Mutex
	inFlight map[netip.Addr]int // forwarded queries, by client
	clients  map[netip.Addr]int // TCP connections, by client
	stop     context.CancelFunc
}

// view is what clients of a socket see. It is never changed.
type view struct {
	networks []*network // in the order of search
	onlyOurs bool       // as in Socket
}

// see replaces the view.
func (k *socket) see(spec Socket, networks []*network) {
	k.view.Store(&view{networks: networks, onlyOurs: spec.OnlyOurs})
}

// newSocket takes a UDP socket and a listener, and the pidfd of a process if there is a third
// descriptor. It closes those of fds that it has duplicated, and owns the others.
func newSocket(s *server, spec Socket, fds []int) (*socket, error) {
	k := &socket{server: s, id: spec.ID, inFlight: map[netip.Addr]int{}, clients: map[netip.Addr]int{}, stop: func() {}}
	var errs []error
	if len(fds) > 2 {
		errs = append(errs, unix.SetNonblock(fds[2], true)) // so that the runtime waits for it
		k.end = os.NewFile(uintptr(fds[2]), "pidfd")
	}
	for _, fd := range fds[:2] {
		errs = append(errs, k.take(fd))
	}
	err := errors.Join(errs...)
	if err == nil && (k.udp == nil || k.tcp == nil) {
		err = errors.New("want a UDP socket and a TCP listener")
	}
	if err != nil {
		k.close()
		return nil, fmt.Errorf("take sockets of %q: %w", spec.ID, err)
	}
	own := k.udp.LocalAddr().(*net.UDPAddr).AddrPort()
	k.addr = netip.AddrPortFrom(own.Addr().Unmap().WithZone(""), own.Port())
	// Kernels before 5.14 have no cookies; all sockets count as local then.
	err = localsock.Control(k.udp, func(fd int) (err error) {
		k.device, _ = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX)
		k.cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return err
	})
	k.local = err != nil || k.cookie == s.cookie
	return k, nil
}

// take duplicates and closes one of the sockets.
func (k *socket) take(fd int) error {
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return os.NewSyscallError("getsockopt", err)
	}
	if kind == unix.SOCK_DGRAM && k.udp == nil {
		c, err := net.FilePacketConn(f)
		if err != nil {
			return err
		}
		k.udp, _ = c.(*net.UDPConn)
		if k.udp == nil {
			c.Close()
		}
		return nil
	}
	if listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err != nil || listens == 0 || k.tcp != nil {
		return nil
	}
	l, err := net.FileListener(f)
	if err != nil {
		return err
	}
	k.tcp, _ = l.(*net.TCPListener)
	if k.tcp == nil {
		l.Close()
	}
	return nil
}

// start serves the sockets until close, in goroutines of the server's.
func (k *socket) start() {
	ctx, stop := context.WithCancel(k.server.ctx)
	k.stop = stop
	k.server.wg.Go(k.serveUDP)
	k.server.wg.Go(func() { _ = localsock.Serve(ctx, k.tcp, maxStreams, k.serveStream) })
	if k.end != nil {
		k.server.wg.Go(k.waitForEnd)
	}
}

// waitForEnd closes the sockets when their process ends. It returns when they are closed.
func (k *socket) waitForEnd() {
	conn, err := k.end.SyscallConn()
	if err == nil && conn.Read(hasEnded) == nil {
		k.server.expire(k)
	}
}

// hasEnded reports whether the process of a pidfd has ended.
func hasEnded(fd uintptr) bool {
	n, err := unix.Ppoll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, &unix.Timespec{}, nil)
	return err == nil && n > 0
}

// close closes the sockets. Their addresses are free when it returns.
func (k *socket) close() {
	if k.udp != nil {
		k.udp.Close()
	}
	if k.tcp != nil {
		k.tcp.Close() // before stop, which closes it too: only the first Close waits
	}
	if k.end != nil {
		k.end.Close()
	}
	k.stop()
}

// batch has the buffers for one system call each way. Sockets that wait have none.
type batch struct {
	in     *sys.Inbox
	out    *sys.Outbox
	bufs   [batchSize][ednsUDPBytes]byte
	q      query
	counts [outcomes]uint32
	cut    uint32
}

func newBatch() *batch {
	b := &batch{out: sys.NewOutbox(batchSize, batchSize)}
	bufs := make([][]byte, batchSize)
	for i := range bufs {
		bufs[i] = make([]byte, ednsUDPBytes) // no query is longer
	}
	b.in = sys.NewInbox(bufs)
	return b
}

// serveUDP answers queries until the socket is closed.
func (k *socket) serveUDP() {
	raw, err := k.udp.SyscallConn()
	if err != nil {
		return
	}
	receive := func(fd uintptr) bool { return k.receive(int(fd)) }
	for raw.Read(receive) == nil {
	}
}

// receive answers the queries that have arrived. It reports whether to call it again at once:
// false means to wait for more.
func (k *socket) receive(fd int) bool {
	b := k.server.batches.Get().(*batch)
	defer k.server.batches.Put(b)
	n, errno := b.in.RecvNow(fd)
	if errno != 0 {
		return errno != unix.EAGAIN
	}
	for i := range n {
		from := b.in.From(i)
		if out := k.answer(b, b.in.Data(i), &from, b.bufs[i][:0]); len(out) > 0 {
			b.out.Begin(&from)
			b.out.Append(out)
		}
	}
	k.send(b, fd)
	k.count(b)
	// Fewer messages than fit: the queue was empty. What arrives later raises another event.
	return n == b.in.Len()
}

// send sends the batch's answers. One that can't be sent is dropped.
func (k *socket) send(b *batch, fd int) {
	for first := 0; first < b.out.Len(); {
		n, errno := b.out.SendNow(fd, first)
		switch errno {
		case 0:
			first += n
		case unix.EINTR:
		default:
			b.counts[dropped]++
			first++
		}
	}
	b.out.Reset()
}

// count adds the batch's counters to the socket's.
func (k *socket) count(b *batch) {
	for o, n := range b.counts {
		if n > 0 {
			k.counts[o].Add(uint64(n))
		}
	}
	if b.cut > 0 {
		k.truncated.Add(uint64(b.cut))
	}
	b.counts, b.cut = [outcomes]uint32{}, 0
}

// answer appends the answer to a message to out, which is empty, and returns it. It returns
// nothing if there is no answer, or not yet.
func (k *socket) answer(b *batch, msg []byte, from *sys.Address, out []byte) []byte {
	client := from.AddrPort().Addr()
	r, o := b.q.process(k, msg, client)
	if o == forwarded {
		r, o = k.forwardUDP(msg, client, *from)
	}
	b.counts[o]++
	if o == forwarded || o == ignored || o == dropped {
		return nil
	}
	out, complete := b.q.appendReply(out, msg, r, b.q.udpBytes)
	if !complete {
		b.cut++
	}
	return out
}

// forwardUDP forwards a query whose answer is sent later.
func (k *socket) forwardUDP(msg []byte, client netip.Addr, from sys.Address) (reply, outcome) {
	return k.forward(msg, false, client, func(frame []byte) {
		if frame == nil {
			return
		}
		out := sys.NewOutbox(1, 1)
		out.Begin(&from)
		out.Append(frame[dns.LengthBytes:])
		raw, err := k.udp.SyscallConn()
		if err != nil {
			return
		}
		_ = raw.Control(func(fd uintptr) {
			if out.SendOneNow(int(fd), 0) != 0 {
				k.counts[dropped].Add(1)
			}
		})
	})
}
