package supervisor

import (
	"bytes"
	"slices"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

type option struct {
	optionName
	length uint32 // of value in bytes; 0 if the kernel lacks the option
	value  [optionBytes]byte
}

// optionName identifies a socket option that can be read and set.
type optionName struct {
	level, name int
	size        uint32 // maximum length of its value in bytes
}

// Options missing in package unix (include/uapi/asm-generic/socket.h,
// include/uapi/linux/{in,tcp,udp}.h), and the bits of SO_BUF_LOCK.
const (
	soBufLock      = 72
	soReservedMem  = 73
	soTxRehash     = 74
	soTimestampNew = 63
	soTimestampNS  = 64 // SO_TIMESTAMPNS_NEW
	soTimestamping = 65 // SO_TIMESTAMPING_NEW
	soRcvTimeoNew  = 66
	soSndTimeoNew  = 67
	tcpTxDelay     = 37
	sndBufLocked   = 1
	rcvBufLocked   = 2

	udpNoCheck6TX    = 101
	udpNoCheck6RX    = 102
	soSelectErrQueue = 45
	ipRecvFragSize   = 25
)

// Sizes of values in bytes.
const (
	intBytes     = 4
	lingerBytes  = 8
	timevalBytes = 16
	controlBytes = 16 // TCP_CA_NAME_MAX
	optionBytes  = 16 // the longest
)

// ints returns options of a level whose values are an int.
func ints(level int, names ...int) (all []optionName) {
	for _, n := range names {
		all = append(all, optionName{level, n, intBytes})
	}
	return all
}

// plainOptions are the options that programs set often. They are read from every socket.
var plainOptions = slices.Concat(
	ints(unix.SOL_SOCKET, unix.SO_REUSEADDR, unix.SO_KEEPALIVE),
	[]optionName{
		{unix.SOL_SOCKET, unix.SO_LINGER, lingerBytes},
		{unix.SOL_SOCKET, unix.SO_RCVTIMEO, timevalBytes}, {unix.SOL_SOCKET, unix.SO_SNDTIMEO, timevalBytes},
		{unix.IPPROTO_TCP, unix.TCP_CONGESTION, controlBytes},
	},
	ints(unix.IPPROTO_TCP, unix.TCP_NODELAY, unix.TCP_CORK, unix.TCP_KEEPIDLE, unix.TCP_KEEPINTVL, unix.TCP_KEEPCNT,
		unix.TCP_USER_TIMEOUT, unix.TCP_NOTSENT_LOWAT),
	ints(unix.IPPROTO_IP, unix.IP_TOS),
	ints(unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, unix.IPV6_TCLASS),
)

// rareOptions are read only from sockets on which an option other than the plain ones was
// set (rareSockets).
var rareOptions = slices.Concat(
	ints(unix.SOL_SOCKET, unix.SO_REUSEPORT, unix.SO_OOBINLINE, unix.SO_DONTROUTE, unix.SO_RCVLOWAT, unix.SO_PRIORITY,
		unix.SO_TIMESTAMP, unix.SO_TIMESTAMPNS, unix.SO_TIMESTAMPING, soTimestampNew, soTimestampNS, soTimestamping,
		unix.SO_BUSY_POLL, unix.SO_ZEROCOPY, soTxRehash, unix.SO_INCOMING_CPU, soReservedMem),
	[]optionName{{unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, 8}},
	ints(unix.IPPROTO_TCP, unix.TCP_MAXSEG, unix.TCP_SYNCNT, unix.TCP_LINGER2, unix.TCP_DEFER_ACCEPT, unix.TCP_WINDOW_CLAMP,
		unix.TCP_THIN_LINEAR_TIMEOUTS, unix.TCP_SAVE_SYN, unix.TCP_INQ, tcpTxDelay),
	ints(unix.IPPROTO_IP, unix.IP_TTL, unix.IP_MINTTL, unix.IP_MTU_DISCOVER, unix.IP_RECVERR, unix.IP_BIND_ADDRESS_NO_PORT),
	ints(unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, unix.IPV6_MTU_DISCOVER, unix.IPV6_RECVERR, unix.IPV6_DONTFRAG,
		unix.IPV6_AUTOFLOWLABEL, unix.IPV6_MINHOPCOUNT),
)

// udpOptions are the options at UDP's own level. The filter allows them, so they are read
// from every UDP socket.
var udpOptions = ints(unix.SOL_UDP, unix.UDP_CORK, unix.UDP_SEGMENT, unix.UDP_GRO, udpNoCheck6TX, udpNoCheck6RX)

// udpRareOptions are further rare options that matter to UDP sockets.
var udpRareOptions = slices.Concat(
	ints(unix.SOL_SOCKET, unix.SO_BROADCAST, unix.SO_NO_CHECK, unix.SO_RXQ_OVFL, soSelectErrQueue, unix.SO_PEEK_OFF),
	ints(unix.IPPROTO_IP, unix.IP_PKTINFO, unix.IP_RECVTTL, unix.IP_RECVTOS, unix.IP_RECVOPTS, unix.IP_RETOPTS,
		unix.IP_RECVORIGDSTADDR, ipRecvFragSize),
	ints(unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, unix.IPV6_RECVHOPLIMIT, unix.IPV6_RECVTCLASS),
)

// memberships are the options that join a multicast or anycast group, by level.
var memberships = map[uint32][]uint32{
	unix.IPPROTO_IP:   {unix.IP_ADD_MEMBERSHIP, unix.IP_ADD_SOURCE_MEMBERSHIP, unix.MCAST_JOIN_GROUP, unix.MCAST_JOIN_SOURCE_GROUP},
	unix.IPPROTO_IPV6: {unix.IPV6_JOIN_GROUP, unix.IPV6_JOIN_ANYCAST, unix.MCAST_JOIN_GROUP, unix.MCAST_JOIN_SOURCE_GROUP},
}

// options are the default options of a kind of socket.
type options struct{ plain, rare []option }

func readOptions(fd, family int, udp bool) options {
	plain, rare := plainOptions, rareOptions
	if udp {
		plain, rare = slices.Concat(plain, udpOptions), slices.Concat(rare, udpRareOptions)
	}
	read := func(names []optionName) (all []option) {
		for _, n := range names {
			if n.level == unix.IPPROTO_IPV6 && family != unix.AF_INET6 {
				continue
			}
			o := option{optionName: n}
			if length, errno := sys.GetOption(fd, n.level, n.name, o.value[:n.size]); errno == 0 {
				o.length = uint32(length)
			}
			all = append(all, o)
		}
		return all
	}
	return options{read(plain), read(rare)}
}

func (n optionName) is(level, name int) bool { return n.level == level && n.name == name }

// copyChanged sets those options of a socket that another one has changed from their
// default values. It reports whether that succeeded. If the socket is bound,
// options that must be set before bind(2) are omitted. A congestion control that only root
// may choose on the host is omitted: the slower tiers would not use it toward the network
// either.
func copyChanged(from, to int, defaults []option, bound bool) bool {
	var buf [optionBytes]byte
	for i := range defaults {
		o := &defaults[i]
		if bound && o.is(unix.IPPROTO_IPV6, unix.IPV6_V6ONLY) {
			continue
		}
		value := buf[:o.size]
		length, errno := sys.GetOption(from, o.level, o.name, value)
		if errno != 0 {
			continue // MPTCP lacks it
		}
		if value = value[:length]; bytes.Equal(value, o.value[:o.length]) {
			continue
		}
		if sys.SetOption(to, o.level, o.name, value) != 0 && !o.is(unix.IPPROTO_TCP, unix.TCP_CONGESTION) {
			return false
		}
	}
	return true
}

// copyBuffers copies buffer sizes that the program has set. Others are tuned by the kernel.
func copyBuffers(from, to int) bool {
	locked, errno := sys.GetInt(from, unix.SOL_SOCKET, soBufLock)
	if errno != 0 {
		return false
	}
	for _, b := range [2]struct{ bit, name int }{{sndBufLocked, unix.SO_SNDBUF}, {rcvBufLocked, unix.SO_RCVBUF}} {
		if locked&b.bit == 0 {
			continue
		}
		// The kernel returns twice the size that was set (socket(7)).
		n, errno := sys.GetInt(from, unix.SOL_SOCKET, b.name)
		if errno != 0 || unix.SetsockoptInt(to, unix.SOL_SOCKET, b.name, n/2) != nil {
			return false
		}
	}
	return true
}
