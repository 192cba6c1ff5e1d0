package sandbox

import (
	"slices"

	"cleat/internal/seal"
	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// sealedCalls returns the system calls that a sealed process may make. The most frequent come
// first: kernels before 5.11 run the filter for each call; later ones cache the verdict for
// calls without conditions.
func sealedCalls(cfg SealConfig) []seal.Call {
	calls := slices.Concat(packetCalls, seal.Runtime(), otherCalls, archCalls, []seal.Call{ioctls(cfg.Supervise)})
	if cfg.Supervise { // inspecting other processes; the kernel still checks the right to
		calls = append(calls, seal.Call{Number: unix.SYS_PIDFD_OPEN}, seal.Call{Number: unix.SYS_PIDFD_GETFD},
			seal.Call{Number: unix.SYS_PROCESS_VM_READV}, seal.Call{Number: unix.SYS_KCMP})
	}
	if cfg.SignalPID != 0 {
		// Once the process id is another process's, the kernel still checks the user's right
		// to signal that.
		calls = append(calls, seal.Call{Number: unix.SYS_KILL, When: []seal.Condition{seal.ArgIs(0, uint32(cfg.SignalPID))}},
			seal.Call{Number: unix.SYS_PIDFD_SEND_SIGNAL})
	}
	return calls
}

// packetCalls move packets; seal.Runtime has further ones.
var packetCalls = []seal.Call{
	{Number: unix.SYS_RECVFROM}, {Number: unix.SYS_SENDTO}, {Number: unix.SYS_SENDMMSG}, {Number: unix.SYS_RECVMMSG},
	{Number: unix.SYS_SENDMSG}, {Number: unix.SYS_RECVMSG}, {Number: unix.SYS_SPLICE},
}

// otherCalls are what the data path and package net need besides.
var otherCalls = []seal.Call{
	{Number: unix.SYS_PREADV2}, {Number: unix.SYS_PWRITEV2}, {Number: unix.SYS_SENDFILE}, {Number: unix.SYS_LSEEK},
	{Number: unix.SYS_FSYNC}, {Number: unix.SYS_FDATASYNC},
	{Number: unix.SYS_FTRUNCATE}, // a log of bounded size, a capture on a full disk

	// IPv4 and IPv6 sockets of TCP, UDP and ping; no raw or packet sockets
	{Number: unix.SYS_SOCKET, When: []seal.Condition{
		seal.ArgIs(0, unix.AF_INET, unix.AF_INET6),
		{Arg: 1, Mask: sockTypeMask, Any: []uint32{unix.SOCK_STREAM, unix.SOCK_DGRAM}},
		seal.ArgIs(2, 0, unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6),
	}},
	{Number: unix.SYS_CONNECT}, {Number: unix.SYS_BIND}, {Number: unix.SYS_LISTEN}, {Number: unix.SYS_ACCEPT4},
	{Number: unix.SYS_GETSOCKOPT}, {Number: unix.SYS_SETSOCKOPT}, {Number: unix.SYS_GETSOCKNAME}, {Number: unix.SYS_GETPEERNAME},
	{Number: unix.SYS_SHUTDOWN},
	// The data path sees one end of a pair in place of a kernel connection. A stream stays
	// between its ends; a datagram could be sent to the path of any socket, such as
	// /dev/log.
	{Number: unix.SYS_SOCKETPAIR, When: []seal.Condition{
		seal.ArgIs(0, unix.AF_UNIX), seal.ArgHas(1, sockTypeMask, unix.SOCK_STREAM),
	}},

	// descriptors
	{Number: unix.SYS_DUP}, {Number: unix.SYS_DUP3}, {Number: unix.SYS_PIPE2},
	{Number: unix.SYS_TIMERFD_CREATE}, {Number: unix.SYS_TIMERFD_SETTIME}, {Number: unix.SYS_FSTATFS},
	{Number: unix.SYS_READLINKAT}, {Number: unix.SYS_FACCESSAT}, {Number: unix.SYS_GETDENTS64},

	// waiting for the command
	{Number: unix.SYS_WAIT4}, {Number: unix.SYS_WAITID},
}

func ioctls(supervise bool) seal.Call {
	requests := []uint32{
		siocinq, siocoutq, siocatmark, fionbio, unix.TCGETS, unix.TIOCGWINSZ,
		unix.TUNGETIFF, unix.TUNGETVNETHDRSZ, unix.TUNSETQUEUE,
	}
	if supervise {
		requests = append(append(requests, sys.NotifyRequests...), unix.NS_GET_PARENT)
	}
	return seal.Call{Number: unix.SYS_IOCTL, When: []seal.Condition{seal.ArgIs(1, requests...)}}
}

// sockTypeMask is SOCK_TYPE_MASK (include/linux/net.h): the bits of socket(2)'s second argument
// that are no flags.
const sockTypeMask = 0xf

// Requests of include/uapi/linux/sockios.h and asm-generic/ioctls.h.
const (
	siocinq    = 0x541b // FIONREAD
	siocoutq   = 0x5411 // TIOCOUTQ
	siocatmark = 0x8905
	fionbio    = 0x5421
)
