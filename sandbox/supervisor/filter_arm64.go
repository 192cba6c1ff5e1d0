package supervisor

import "golang.org/x/sys/unix"

// otherABI: there is none by the same architecture number.
const otherABI = 0

var oldCalls []call

const archName = "SCMP_ARCH_AARCH64"

const foreignArch = unix.AUDIT_ARCH_ARM

// foreignCalls of 32-bit ARM (arch/arm/tools/syscall.tbl), which has no socketcall.
var foreignCalls = []foreignCall{
	{"socket", 281, ofFamilies{}},
	{"bind", 282, refused{unix.ENOSYS}},
	{"connect", 283, refused{unix.ENOSYS}},
	{"listen", 284, refused{unix.ENOSYS}},
	{"socketpair", 288, ofFamilies{}},
	{"sendto", 290, refused{unix.ENOSYS}},
	{"setsockopt", 294, refused{unix.ENOSYS}},
	{"sendmsg", 296, refused{unix.ENOSYS}},
	{"sendmmsg", 374, refused{unix.ENOSYS}},
	{"io_uring_setup", 425, refused{unix.ENOSYS}},
}

// foreignSocketCalls of 32-bit ARM make sockets.
var foreignSocketCalls = []foreignCall{
	{"socket", 281, ofFamilies{}},
	{"socketpair", 288, ofFamilies{}},
	{"io_uring_setup", 425, refused{unix.ENOSYS}},
}
