package supervisor

import (
	"bytes"
	"unsafe"

	"golang.org/x/sys/unix"
)

// option is a socket option's value.
type option struct {
	optionName
	has   uint32 // so many bytes; 0: the kernel does not have it
	value [16]byte
}

// optionName names one, and how long its value can be.
type optionName struct {
	level, name int
	size        uint32
}

// Options that can be read back and set again, of include/uapi/asm-generic/
// socket.h and include/uapi/linux/{in,in6,tcp}.h. Some are not in package unix.
const (
	soBufLock     = 72
	soTxRehash    = 74
	soReservedMem = 73
	tcpTxDelay    = 37
	sndBufLocked  = 1
	rcvBufLocked  = 2
	intBytes      = 4
	lingerBytes   = 8
	timevalBytes  = 16
	controlBytes  = 16 // TCP_CA_NAME_MAX
	soTimestampN  = 63
	soTimestampNN = 64
	soTimestampIN = 65
)

var socketOptions = []optionName{
	{unix.SOL_SOCKET, unix.SO_REUSEADDR, intBytes}, {unix.SOL_SOCKET, unix.SO_REUSEPORT, intBytes},
	{unix.SOL_SOCKET, unix.SO_KEEPALIVE, intBytes}, {unix.SOL_SOCKET, unix.SO_OOBINLINE, intBytes},
	{unix.SOL_SOCKET, unix.SO_DONTROUTE, intBytes}, {unix.SOL_SOCKET, unix.SO_LINGER, lingerBytes},
	{unix.SOL_SOCKET, unix.SO_RCVLOWAT, intBytes}, {unix.SOL_SOCKET, unix.SO_PRIORITY, intBytes},
	{unix.SOL_SOCKET, unix.SO_RCVTIMEO, timevalBytes}, {unix.SOL_SOCKET, unix.SO_SNDTIMEO, timevalBytes},
	{unix.SOL_SOCKET, unix.SO_TIMESTAMP, intBytes}, {unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, intBytes},
	{unix.SOL_SOCKET, unix.SO_TIMESTAMPING, intBytes}, {unix.SOL_SOCKET, soTimestampN, intBytes},
	{unix.SOL_SOCKET, soTimestampNN, intBytes}, {unix.SOL_SOCKET, soTimestampIN, intBytes},
	{unix.SOL_SOCKET, unix.SO_BUSY_POLL, intBytes}, {unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, 8},
	{unix.SOL_SOCKET, unix.SO_ZEROCOPY, intBytes}, {unix.SOL_SOCKET, soTxRehash, intBytes},
	{unix.SOL_SOCKET, unix.SO_INCOMING_CPU, intBytes}, {unix.SOL_SOCKET, soReservedMem, intBytes},

	{unix.IPPROTO_TCP, unix.TCP_NODELAY, intBytes}, {unix.IPPROTO_TCP, unix.TCP_CORK, intBytes},
	{unix.IPPROTO_TCP, unix.TCP_MAXSEG, intBytes}, {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, intBytes},
	{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, intBytes}, {unix.IPPROTO_TCP, unix.TCP_KEEPCNT, intBytes},
	{unix.IPPROTO_TCP, unix.TCP_SYNCNT, intBytes}, {unix.IPPROTO_TCP, unix.TCP_LINGER2, intBytes},
	{unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, intBytes}, {unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP, intBytes},
	{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, intBytes}, {unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, intBytes},
	{unix.IPPROTO_TCP, unix.TCP_THIN_LINEAR_TIMEOUTS, intBytes}, {unix.IPPROTO_TCP, unix.TCP_SAVE_SYN, intBytes},
	{unix.IPPROTO_TCP, unix.TCP_INQ, intBytes}, {unix.IPPROTO_TCP, tcpTxDelay, intBytes},
	{unix.IPPROTO_TCP, unix.TCP_CONGESTION, controlBytes},

	{unix.IPPROTO_IP, unix.IP_TOS, intBytes}, {unix.IPPROTO_IP, unix.IP_TTL, intBytes},
	{unix.IPPROTO_IP, unix.IP_MINTTL, intBytes}, {unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, intBytes},
	{unix.IPPROTO_IP, unix.IP_RECVERR, intBytes}, {unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, intBytes},
}

var socketOptions6 = []optionName{
	{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, intBytes}, {unix.IPPROTO_IPV6, unix.IPV6_TCLASS, intBytes},
	{unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, intBytes}, {unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, intBytes},
	{unix.IPPROTO_IPV6, unix.IPV6_RECVERR, intBytes}, {unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, intBytes},
	{unix.IPPROTO_IPV6, unix.IPV6_AUTOFLOWLABEL, intBytes}, {unix.IPPROTO_IPV6, unix.IPV6_MINHOPCOUNT, intBytes},
}

// readOptions reads all options that can be copied.
func readOptions(fd, family int) []option {
	all := make([]option, 0, len(socketOptions)+len(socketOptions6))
	for _, n := range socketOptions {
		all = append(all, n.read(fd))
	}
	if family == unix.AF_INET6 {
		for _, n := range socketOptions6 {
			all = append(all, n.read(fd))
		}
	}
	return all
}

func (n optionName) is(level, name int) bool { return n.level == level && n.name == name }

func (n optionName) read(fd int) option {
	o := option{optionName: n}
	size := n.size
	if getsockopt(fd, n.level, n.name, unsafe.Pointer(&o.value), &size) == 0 {
		o.has = size
	}
	return o
}

func getsockopt(fd, level, name int, value unsafe.Pointer, size *uint32) unix.Errno {
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), uintptr(value), uintptr(unsafe.Pointer(size)), 0)
	return errno
}

func (o *option) set(fd int) unix.Errno {
	_, _, errno := unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(o.level), uintptr(o.name), uintptr(unsafe.Pointer(&o.value)), uintptr(o.has), 0)
	return errno
}

// copyOptions gives a socket what another one has beyond a fresh one of its kind.
// It tells whether all could be copied. What is said before bind(2) is left out
// for a socket that is bound. A congestion control that the host permits nobody
// but root is left out: the slower tiers would not use it toward the network
// either.
func copyOptions(from, to int, fresh []option, bound bool) bool {
	for i := range fresh {
		was := &fresh[i]
		if bound && was.is(unix.IPPROTO_IPV6, unix.IPV6_V6ONLY) {
			continue
		}
		o := was.read(from)
		if o.has == was.has && bytes.Equal(o.value[:o.has], was.value[:was.has]) {
			continue
		}
		if o.has == 0 || o.set(to) != 0 && !o.is(unix.IPPROTO_TCP, unix.TCP_CONGESTION) {
			return false
		}
	}
	return copyBuffers(from, to)
}

// copyBuffers copies sizes that were asked for; the others grow by themselves.
func copyBuffers(from, to int) bool {
	locked, err := unix.GetsockoptInt(from, unix.SOL_SOCKET, soBufLock)
	if err != nil {
		return false
	}
	for _, b := range []struct{ bit, name int }{{sndBufLocked, unix.SO_SNDBUF}, {rcvBufLocked, unix.SO_RCVBUF}} {
		if locked&b.bit == 0 {
			continue
		}
		// The kernel tells twice what it was told (socket(7)).
		n, err := unix.GetsockoptInt(from, unix.SOL_SOCKET, b.name)
		if err != nil || unix.SetsockoptInt(to, unix.SOL_SOCKET, b.name, n/2) != nil {
			return false
		}
	}
	return true
}

// peculiar tells whether a socket has what can't be copied: a mark, which chooses
// routes of its own namespace, a link, a filter, or another protocol on top.
func peculiar(fd int) bool {
	if n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK); err != nil || n != 0 {
		return true
	}
	if n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX); err != nil || n != 0 {
		return true
	}
	var size uint32
	if errno := getsockopt(fd, unix.SOL_SOCKET, unix.SO_GET_FILTER, nil, &size); errno != 0 || size != 0 {
		return true
	}
	var name [16]byte
	size = uint32(len(name))
	return getsockopt(fd, unix.IPPROTO_TCP, unix.TCP_ULP, unsafe.Pointer(&name), &size) == 0 && size > 0
}
