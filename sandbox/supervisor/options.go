package supervisor

import (
	"bytes"
	"slices"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// option is a socket option and its value.
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

// plainOptions are the options that programs set often. They are read from every socket.
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

// rareOptions are read only from sockets on which an option other than the plain ones was
// set (rareSockets).
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

// udpOptions are the options at UDP's own level. The filter allows them, so they are read
// from every UDP socket.
var udpOptions = []optionName{
	{unix.SOL_UDP, unix.UDP_CORK, intBytes}, {unix.SOL_UDP, unix.UDP_SEGMENT, intBytes}, {unix.SOL_UDP, unix.UDP_GRO, intBytes},
	{unix.SOL_UDP, udpNoCheck6TX, intBytes}, {unix.SOL_UDP, udpNoCheck6RX, intBytes},
}

// udpRareOptions are further rare options that matter to UDP sockets.
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

// memberships are the options that join a multicast or anycast group, by level.
var memberships = map[uint32][]uint32{
	unix.IPPROTO_IP:   {unix.IP_ADD_MEMBERSHIP, unix.IP_ADD_SOURCE_MEMBERSHIP, unix.MCAST_JOIN_GROUP, unix.MCAST_JOIN_SOURCE_GROUP},
	unix.IPPROTO_IPV6: {unix.IPV6_JOIN_GROUP, unix.IPV6_JOIN_ANYCAST, unix.MCAST_JOIN_GROUP, unix.MCAST_JOIN_SOURCE_GROUP},
}

// options are the default options of a kind of socket.
type options struct{ plain, rare []option }

// readOptions reads all options that can be copied.
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
		if errno != 0 || sys.SetInt(to, unix.SOL_SOCKET, b.name, n/2) != 0 {
			return false
		}
	}
	return true
}
