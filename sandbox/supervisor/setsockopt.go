package supervisor

import (
	"bytes"
	"errors"
	"slices"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// copyOptions copies the options of a program's socket that differ from the defaults. Rare
// options are copied only if the program has set any. It reports whether that succeeded.
func (p *program) copyOptions(from, to int, defaults options, bound bool) bool {
	if !copyChanged(from, to, defaults.plain, bound) || !copyBuffers(from, to) {
		return false
	}
	rare, _ := p.rare.has(from)
	return !rare || copyChanged(from, to, defaults.rare, bound)
}

// uncopyable reports whether a socket has a property that can't be copied: a mark, which
// selects routes of its own namespace, a device, a filter, or a protocol on top of TCP.
func (p *program) uncopyable(fd int) bool {
	rare, uncopyable := p.rare.has(fd)
	if !rare || uncopyable {
		return uncopyable
	}
	for _, name := range []int{unix.SO_MARK, unix.SO_BINDTOIFINDEX} {
		if n, errno := sys.GetInt(fd, unix.SOL_SOCKET, name); errno != 0 || n != 0 {
			return true
		}
	}
	if size, errno := sys.GetOption(fd, unix.SOL_SOCKET, unix.SO_GET_FILTER, nil); errno != 0 || size != 0 {
		return true
	}
	var name [controlBytes]byte
	size, errno := sys.GetOption(fd, unix.IPPROTO_TCP, unix.TCP_ULP, name[:])
	return errno == 0 && size > 0
}

// rareSockets are the sockets of a program, by cookie, on which a rare option was set. The
// value is true if the option can't be copied. The table forgets the least recently used
// socket when it is full; a cookie above the highest forgotten one is certainly not
// forgotten. Most new sockets have such a cookie: a socket gets it when it is first read, in
// increasing order on each processor.
type rareSockets struct {
	sockets   lru[uint64, bool]
	forgotten uint64 // the highest forgotten cookie
}

func (r *rareSockets) add(cookie uint64, uncopyable bool) {
	before, _ := r.sockets.take(cookie)
	if oldest, _, ok := r.sockets.oldest(); ok && r.sockets.len() >= r.sockets.max {
		r.forgotten = max(r.forgotten, oldest)
	}
	r.sockets.put(cookie, before || uncopyable)
}

// has reports whether a socket may have rare options, and whether it may have some that
// can't be copied.
func (r *rareSockets) has(fd int) (rare, uncopyable bool) {
	if r.sockets.len() == 0 {
		return false, false
	}
	cookie, err := socketCookie(fd)
	if err != nil {
		return true, true
	}
	return r.hasCookie(cookie)
}

// hasCookie is has for a socket's cookie.
func (r *rareSockets) hasCookie(cookie uint64) (rare, uncopyable bool) {
	if uncopyable, rare = r.sockets.get(cookie); rare {
		return true, uncopyable
	}
	forgotten := cookie <= r.forgotten
	return forgotten, forgotten
}

// setsockopt handles setsockopt(2). It records that the socket has a rare option, and lets
// the kernel set all options but a few. Under a Profile all calls of setsockopt come here,
// since profiles can't distinguish options.
func (p *program) setsockopt() {
	level, name := uint32(p.call.Args[1]), uint32(p.call.Args[2])
	if refused, supervised := treatmentOf(level, name); refused {
		p.reply(unix.ENOPROTOOPT)
		return
	} else if !supervised {
		p.continueCall()
		return
	}
	// These options have effects beyond the socket, so they must not be set on another
	// socket that the program puts under the descriptor meanwhile. All others are harmless
	// to any socket.
	isULP := level == unix.IPPROTO_TCP && name == unix.TCP_ULP
	isRouting := level == unix.SOL_SOCKET && slices.Contains(routingOptions, name)
	fd, _, err := p.duplicate(int(int32(p.call.Args[0])))
	if err != nil {
		if errno := errnoFor(err); isULP || isRouting || errno == unix.EAGAIN || errors.Is(err, unix.EBADF) {
			p.reply(errno)
		} else {
			p.continueCall() // a program that can't be inspected connects and binds nothing
		}
		return
	}
	defer unix.Close(fd)
	proto, errno := sys.GetInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if errno == 0 && (isTCP(proto) || p.isUDP(proto)) {
		if cookie, err := socketCookie(fd); err == nil {
			p.rare.add(cookie, slices.Contains(memberships[level], name))
		}
	}
	where, err := netCookie(fd)
	switch {
	case isULP:
		p.setOption(fd, level, name, func(value []byte) bool {
			text, _, _ := bytes.Cut(value, []byte{0})
			return string(text) == tls
		})
	case isRouting:
		p.setOption(fd, level, name, func([]byte) bool {
			return err == nil && where != p.s.hostNet && (name != unix.SO_MARK || maySetMark(int(p.call.TID)))
		})
	default:
		p.continueCall()
	}
}

// routingOptions select routes and rules for a socket's packets. On a socket of the host
// only the host's configuration may set them.
var routingOptions = []uint32{unix.SO_MARK, unix.SO_BINDTODEVICE, unix.SO_BINDTOIFINDEX}

// maySetMark reports whether a thread has a capability that SO_MARK requires. The kernel
// would check the supervisor's capabilities instead.
func maySetMark(tid int) bool {
	have, err := statusField(tid, "CapEff:", 16)
	return err == nil && have&(1<<unix.CAP_NET_ADMIN|1<<unix.CAP_NET_RAW) != 0
}

// tls is the only protocol that a program may put on top of TCP (TCP_ULP). The other one,
// smc, hides the TCP socket in a socket that does not look like TCP. To connect or bind the
// outer socket connects or binds the inner one.
const tls = "tls"

// setOption carries out setsockopt(2) if the value is allowed.
func (p *program) setOption(fd int, level, name uint32, allowed func(value []byte) bool) {
	var buf [optionBytes]byte
	value := buf[:min(uint32(p.call.Args[4]), optionBytes)]
	errno := sys.ReadMemory(int(p.call.TID), uintptr(p.call.Args[3]), value)
	if !p.waiting() {
		return
	}
	switch {
	case errno != 0:
	case !allowed(value):
		errno = unix.EPERM
	default:
		errno = sys.SetOption(fd, int(level), int(name), value)
	}
	p.reply(errno)
}
