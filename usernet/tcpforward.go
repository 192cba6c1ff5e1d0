package usernet

import (
	"fmt"
	"net/netip"
	"time"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// tcpListener accepts clients of a forward.
type tcpListener struct {
	t       *tcpTable
	forward Forward
	fd      int
	ticket  ticket
	resume  timer // after a pause
	last    int64 // when the last client came
}

// listen opens a forward.
func (t *tcpTable) listen(f Forward) (at netip.AddrPort, closeIt func(), err error) {
	fd, at, err := bindForward(f, unix.SOCK_STREAM)
	if err != nil {
		return at, nil, err
	}
	l := &tcpListener{t: t, forward: f, fd: fd}
	if l.forward.To.Port() == 0 {
		l.forward.To = netip.AddrPortFrom(f.To.Addr(), at.Port())
	}
	t.s.tuneListener(fd)
	if err := unix.Listen(fd, backlog); err != nil {
		unix.Close(fd)
		return at, nil, fmt.Errorf("listen: %w", err)
	}
	l.resume.fire = func() { _ = t.s.loop.modify(l.ticket, fd, unix.EPOLLIN) }
	if l.ticket, err = t.s.loop.add(fd, unix.EPOLLIN, l); err != nil {
		unix.Close(fd)
		return at, nil, err
	}
	return at, l.close, nil
}

// backlog of listening sockets; the kernel lowers it to net.core.somaxconn.
const backlog = 4096

func (l *tcpListener) close() {
	l.t.s.loop.timers.drop(&l.resume)
	l.t.s.loop.remove(l.ticket)
	unix.Close(l.fd)
}

// acceptsPerRound bounds how long a rush of clients may keep others waiting.
const acceptsPerRound = 32

// rush is how soon after another a client comes in a rush: one that waits for an
// answer before its next connection takes longer.
const rush = 20 * time.Microsecond

// ready implements source. The socket is level-triggered: what is left waits
// for the next round. So, outside of a rush, one client is taken, and nobody asks
// in vain for the next.
func (l *tcpListener) ready(uint32) {
	most, now := 1, l.t.s.loop.now
	if now-l.last < int64(rush) {
		most = acceptsPerRound
	}
	l.last = now
	for range most {
		fd, from, errno := sys.AcceptNow(l.fd)
		if errno != 0 {
			if errno == unix.EMFILE || errno == unix.ENFILE {
				l.pause()
			}
			return
		}
		if !l.accept(fd, from.AddrPort()) {
			abandon(fd)
		}
	}
}

// pause lets clients wait in the kernel's queue while there are no descriptors;
// without it the loop would turn in vain.
func (l *tcpListener) pause() {
	l.t.s.stats.OverLimit++
	if l.t.s.loop.modify(l.ticket, l.fd, 0) == nil {
		l.t.s.loop.timers.set(&l.resume, l.t.s.loop.after(100*time.Millisecond))
	}
}

func (l *tcpListener) accept(fd int, client netip.AddrPort) bool {
	t := l.t
	guest, shown, ok := t.s.inside(l.forward, client)
	if !ok || t.s.full() {
		return false
	}
	if shown, ok = t.vacant(guest, shown); !ok {
		return false
	}
	e := t.s.group.forClient()
	if e == t.s {
		t.call(fd, client, guest, shown)
		return true
	}
	return e.loop.post(func() { e.tcp.call(fd, client, guest, shown) })
}

// abandon closes a client's socket so that it gets a RST.
func abandon(fd int) {
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	unix.Close(fd)
}

// vacant is the client's shown address with a port that no other connection to
// the guest's port uses: several clients may share the gateway's address.
func (t *tcpTable) vacant(guest, shown netip.AddrPort) (netip.AddrPort, bool) {
	const tries = 256
	for i := range uint16(tries) {
		port := shown.Port() + i*257
		if port < 1024 && i > 0 {
			continue
		}
		at := netip.AddrPortFrom(shown.Addr(), port)
		f := t.flows[keyOf(guest, at)]
		switch {
		case f == nil && t.s.group.other(t.s, ownerKey{keyOf(guest, at), true}) == nil:
			return at, true
		case f != nil && f.state == finished:
			t.forget(f)
			return at, true
		}
	}
	return shown, false
}
