package supervisor

import (
	"bytes"
	"slices"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// option is a socket option's value.
type option struct {
	optionName
	has   uint32 // so many bytes; 0: the kernel does not have it
	value [optionBytes]byte
}

// optionName names one, and how long its value can be.
type optionName struct {
	level, name int
	size        uint32
}

// Options that can be read back and set again, of include/uapi/asm-generic/
// socket.h and include/uapi/linux/{in,in6,tcp}.h. Some are not in package unix.
const (
	soBufLock      = 72
	soReservedMem  = 73
	soTxRehash     = 74
	soTimestampNew = 63
	soTimestampNS  = 64 // the new one, as is the next
	soTimestamping = 65
	soRcvTimeoNew  = 66
	soSndTimeoNew  = 67
	tcpTxDelay     = 37
	sndBufLocked   = 1
	rcvBufLocked   = 2
)

// Sizes of values in bytes.
const (
	intBytes     = 4
	lingerBytes  = 8
	timevalBytes = 16
	controlBytes = 16 // TCP_CA_NAME_MAX
	optionBytes  = 16 // the longest
)

// plainOptions are those that programs set on many of their sockets. They are read
// from each.
var plainOptions = []optionName{
	{unix.SOL_SOCKET, unix.SO_REUSEADDR, intBytes}, {unix.SOL_SOCKET, unix.SO_KEEPALIVE, intBytes},
	{unix.SOL_SOCKET, unix.SO_LINGER, lingerBytes},
	{unix.SOL_SOCKET, unix.SO_RCVTIMEO, timevalBytes}, {unix.SOL_SOCKET, unix.SO_SNDTIMEO, timevalBytes},
	{unix.IPPROTO_TCP, unix.TCP_NODELAY, intBytes}, {unix.IPPROTO_TCP, unix.TCP_CORK, intBytes},
	{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, intBytes}, {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, intBytes},
	{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, intBytes}, {unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, intBytes},
	{unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, intBytes}, {unix.IPPROTO_TCP, unix.TCP_CONGESTION, controlBytes},
	{unix.IPPROTO_IP, unix.IP_TOS, intBytes},
	{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, intBytes}, {unix.IPPROTO_IPV6, unix.IPV6_TCLASS, intBytes},
}

// rareOptions are read from sockets that had another one set than the plain ones.
var rareOptions = []optionName{
	{unix.SOL_SOCKET, unix.SO_REUSEPORT, intBytes}, {unix.SOL_SOCKET, unix.SO_OOBINLINE, intBytes},
	{unix.SOL_SOCKET, unix.SO_DONTROUTE, intBytes}, {unix.SOL_SOCKET, unix.SO_RCVLOWAT, intBytes},
	{unix.SOL_SOCKET, unix.SO_PRIORITY, intBytes}, {unix.SOL_SOCKET, unix.SO_TIMESTAMP, intBytes},
	{unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, intBytes}, {unix.SOL_SOCKET, unix.SO_TIMESTAMPING, intBytes},
	{unix.SOL_SOCKET, soTimestampNew, intBytes}, {unix.SOL_SOCKET, soTimestampNS, intBytes},
	{unix.SOL_SOCKET, soTimestamping, intBytes}, {unix.SOL_SOCKET, unix.SO_BUSY_POLL, intBytes},
	{unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, 8}, {unix.SOL_SOCKET, unix.SO_ZEROCOPY, intBytes},
	{unix.SOL_SOCKET, soTxRehash, intBytes}, {unix.SOL_SOCKET, unix.SO_INCOMING_CPU, intBytes},
	{unix.SOL_SOCKET, soReservedMem, intBytes},

	{unix.IPPROTO_TCP, unix.TCP_MAXSEG, intBytes}, {unix.IPPROTO_TCP, unix.TCP_SYNCNT, intBytes},
	{unix.IPPROTO_TCP, unix.TCP_LINGER2, intBytes}, {unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, intBytes},
	{unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP, intBytes}, {unix.IPPROTO_TCP, unix.TCP_THIN_LINEAR_TIMEOUTS, intBytes},
	{unix.IPPROTO_TCP, unix.TCP_SAVE_SYN, intBytes}, {unix.IPPROTO_TCP, unix.TCP_INQ, intBytes},
	{unix.IPPROTO_TCP, tcpTxDelay, intBytes},

	{unix.IPPROTO_IP, unix.IP_TTL, intBytes}, {unix.IPPROTO_IP, unix.IP_MINTTL, intBytes},
	{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, intBytes}, {unix.IPPROTO_IP, unix.IP_RECVERR, intBytes},
	{unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, intBytes},

	{unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, intBytes}, {unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, intBytes},
	{unix.IPPROTO_IPV6, unix.IPV6_RECVERR, intBytes}, {unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, intBytes},
	{unix.IPPROTO_IPV6, unix.IPV6_AUTOFLOWLABEL, intBytes}, {unix.IPPROTO_IPV6, unix.IPV6_MINHOPCOUNT, intBytes},
}

// Options of UDP sockets, of include/uapi/linux/udp.h and the above.
const (
	udpNoCheck6TX    = 101
	udpNoCheck6RX    = 102
	soSelectErrQueue = 45
	ipRecvFragSize   = 25
)

// udpOptions are those of UDP's own. The filter does not ask about them, so they are
// read from each socket.
var udpOptions = []optionName{
	{unix.SOL_UDP, unix.UDP_CORK, intBytes}, {unix.SOL_UDP, unix.UDP_SEGMENT, intBytes}, {unix.SOL_UDP, unix.UDP_GRO, intBytes},
	{unix.SOL_UDP, udpNoCheck6TX, intBytes}, {unix.SOL_UDP, udpNoCheck6RX, intBytes},
}

// udpRareOptions are more that mean something to them.
var udpRareOptions = []optionName{
	{unix.SOL_SOCKET, unix.SO_BROADCAST, intBytes}, {unix.SOL_SOCKET, unix.SO_NO_CHECK, intBytes},
	{unix.SOL_SOCKET, unix.SO_RXQ_OVFL, intBytes}, {unix.SOL_SOCKET, soSelectErrQueue, intBytes},
	{unix.SOL_SOCKET, unix.SO_PEEK_OFF, intBytes},
	{unix.IPPROTO_IP, unix.IP_PKTINFO, intBytes}, {unix.IPPROTO_IP, unix.IP_RECVTTL, intBytes},
	{unix.IPPROTO_IP, unix.IP_RECVTOS, intBytes}, {unix.IPPROTO_IP, unix.IP_RECVOPTS, intBytes},
	{unix.IPPROTO_IP, unix.IP_RETOPTS, intBytes}, {unix.IPPROTO_IP, unix.IP_RECVORIGDSTADDR, intBytes},
	{unix.IPPROTO_IP, ipRecvFragSize, intBytes},
	{unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, intBytes}, {unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, intBytes},
	{unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, intBytes},
}

// memberships are options that have a socket hear of a group, by their level.
var memberships = map[uint32][]uint32{
	unix.IPPROTO_IP:   {unix.IP_ADD_MEMBERSHIP, unix.IP_ADD_SOURCE_MEMBERSHIP, unix.MCAST_JOIN_GROUP, unix.MCAST_JOIN_SOURCE_GROUP},
	unix.IPPROTO_IPV6: {unix.IPV6_JOIN_GROUP, unix.IPV6_JOIN_ANYCAST, unix.MCAST_JOIN_GROUP, unix.MCAST_JOIN_SOURCE_GROUP},
}

// options are those of a fresh socket.
type options struct{ plain, rare []option }

// readOptions reads all options that can be copied.
func readOptions(fd, family int, udp bool) options {
	plain, rare := plainOptions, rareOptions
	if udp {
		plain, rare = slices.Concat(plain, udpOptions), slices.Concat(rare, udpRareOptions)
	}
	read := func(names []optionName) (all []option) {
		for _, n := range names {
			if n.level != unix.IPPROTO_IPV6 || family == unix.AF_INET6 {
				all = append(all, n.read(fd))
			}
		}
		return all
	}
	return options{read(plain), read(rare)}
}

func (n optionName) is(level, name int) bool { return n.level == level && n.name == name }

func (n optionName) read(fd int) option {
	o := option{optionName: n}
	if size, errno := sys.GetOption(fd, n.level, n.name, o.value[:n.size]); errno == 0 {
		o.has = uint32(size)
	}
	return o
}

// copyOptions gives a socket what another one has beyond a fresh one of its kind.
// It tells whether all could be copied. What is said before bind(2) is left out
// for a socket that is bound. A congestion control that the host permits nobody
// but root is left out: the slower tiers would not use it toward the network
// either.
func copyOptions(from, to int, fresh []option, bound bool) bool {
	var now [optionBytes]byte
	for i := range fresh {
		was := &fresh[i]
		if bound && was.is(unix.IPPROTO_IPV6, unix.IPV6_V6ONLY) {
			continue
		}
		value := now[:was.size]
		size, errno := sys.GetOption(from, was.level, was.name, value)
		if errno != 0 {
			continue // MPTCP does not have it
		}
		if value = value[:size]; bytes.Equal(value, was.value[:was.has]) {
			continue
		}
		if sys.SetOption(to, was.level, was.name, value) != 0 && !was.is(unix.IPPROTO_TCP, unix.TCP_CONGESTION) {
			return false
		}
	}
	return true
}

// copyBuffers copies sizes that were asked for; the others grow by themselves.
func copyBuffers(from, to int) bool {
	locked, errno := sys.GetInt(from, unix.SOL_SOCKET, soBufLock)
	if errno != 0 {
		return false
	}
	for _, b := range [2]struct{ bit, name int }{{sndBufLocked, unix.SO_SNDBUF}, {rcvBufLocked, unix.SO_RCVBUF}} {
		if locked&b.bit == 0 {
			continue
		}
		// The kernel tells twice what it was told (socket(7)).
		n, errno := sys.GetInt(from, unix.SOL_SOCKET, b.name)
		if errno != 0 || sys.SetInt(to, unix.SOL_SOCKET, b.name, n/2) != 0 {
			return false
		}
	}
	return true
}
