package supervisor

import (
	"bytes"
	"errors"
	"slices"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// copyAll copies the options of a socket of the program's: the rare ones too where
// it has had any set.
func (p *program) copyAll(from, to int, fresh options, bound bool) bool {
	if !copyOptions(from, to, fresh.plain, bound) || !copyBuffers(from, to) {
		return false
	}
	rare, _ := p.rare.has(from)
	return !rare || copyOptions(from, to, fresh.rare, bound)
}

// peculiar reports whether a socket has what can't be copied: a mark, which chooses
// routes of its own namespace, a link, a filter, or another protocol on top.
func (p *program) peculiar(fd int) bool {
	rare, peculiar := p.rare.has(fd)
	if !rare || peculiar {
		return peculiar
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

// rareSockets are those of a program, by cookie, that have had a rare option set. The value
// says that it can't be copied. The oldest are forgotten. A socket gets its cookie when it
// is asked for, in growing order on each processor, so that of sockets with higher cookies
// than all that were forgotten something is known.
type rareSockets struct {
	sockets   lru[uint64, bool]
	forgotten uint64 // the highest cookie that was
}

// note remembers a socket.
func (r *rareSockets) note(cookie uint64, peculiar bool) {
	before, _ := r.sockets.take(cookie)
	if oldest, _, ok := r.sockets.oldest(); ok && r.sockets.len() >= r.sockets.max {
		r.forgotten = max(r.forgotten, oldest)
	}
	r.sockets.put(cookie, before || peculiar)
}

// has reports whether a socket may have rare options, and whether some may be such that
// can't be copied.
func (r *rareSockets) has(fd int) (rare, peculiar bool) {
	if r.sockets.len() == 0 {
		return false, false
	}
	c, err := socketCookie(fd)
	if err != nil {
		return true, true
	}
	return r.known(c)
}

// known is has for a socket by its cookie.
func (r *rareSockets) known(cookie uint64) (rare, peculiar bool) {
	if peculiar, rare = r.sockets.get(cookie); rare {
		return true, peculiar
	}
	forgotten := cookie <= r.forgotten
	return forgotten, forgotten
}

// setsockopt notes that a socket has a rare option, and lets it be set. A Profile
// can't tell options apart, so that all come here.
func (p *program) setsockopt() {
	level, name := uint32(p.note.Args[1]), uint32(p.note.Args[2])
	if refused, told := treatmentOf(level, name); refused {
		p.reply(unix.ENOPROTOOPT)
		return
	} else if !told {
		p.proceed() // harmless to any socket
		return
	}
	// These reach beyond the socket, so the kernel must not find another one there by
	// the time. All others are harmless to any socket, whatever we know of it.
	onTop := level == unix.IPPROTO_TCP && name == unix.TCP_ULP
	routing := level == unix.SOL_SOCKET && slices.Contains(routingOptions, name)
	fd, _, err := p.duplicate(int(int32(p.note.Args[0])))
	switch {
	case errors.Is(err, unix.EBADF):
		p.reply(unix.EBADF)
		return
	case err != nil && (onTop || routing || refusalFor(err) == unix.EAGAIN):
		p.reply(refusalFor(err))
		return
	case err != nil:
		p.proceed() // a program that we may not look into connects and binds nothing
		return
	}
	defer unix.Close(fd)
	proto, errno := sys.GetInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if errno == 0 && (isTCP(proto) || p.isUDP(proto)) {
		if c, err := socketCookie(fd); err == nil {
			p.rare.note(c, slices.Contains(memberships[level], name))
		}
	}
	where, err := cookie(fd)
	switch {
	case onTop:
		p.set(fd, level, name, func(value []byte) bool {
			text, _, _ := bytes.Cut(value, []byte{0})
			return string(text) == tls
		})
	case routing:
		p.set(fd, level, name, func([]byte) bool {
			return err == nil && where != p.s.host && (name != unix.SO_MARK || mayMark(int(p.note.TID)))
		})
	default:
		p.proceed()
	}
}

// routingOptions choose routes and rules for a socket's packets. One of the host's
// has them as the host's configuration says.
var routingOptions = []uint32{unix.SO_MARK, unix.SO_BINDTODEVICE, unix.SO_BINDTOIFINDEX}

// mayMark reports whether a thread has one of the capabilities that SO_MARK takes. The
// kernel would ask about ours instead.
func mayMark(tid int) bool {
	have, err := statusField(tid, "CapEff:", 16)
	return err == nil && have&(1<<unix.CAP_NET_ADMIN|1<<unix.CAP_NET_RAW) != 0
}

// tls is the one protocol that may be put on top of TCP (TCP_ULP). Another one,
// smc, would make of a socket one that nobody takes for TCP's, and that connects
// and binds that inside of it.
const tls = "tls"

// set carries out setsockopt(2) with values that may be set.
func (p *program) set(fd int, level, name uint32, may func(value []byte) bool) {
	var value [optionBytes]byte
	size := min(uint32(p.note.Args[4]), uint32(len(value)))
	errno := sys.ReadMemory(int(p.note.TID), uintptr(p.note.Args[3]), value[:size])
	if !p.lives() {
		return
	}
	switch {
	case errno != 0:
	case !may(value[:size]):
		errno = unix.EPERM
	default:
		errno = sys.SetOption(fd, int(level), int(name), value[:size])
	}
	p.reply(errno)
}
