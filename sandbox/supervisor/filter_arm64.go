package supervisor

import "golang.org/x/sys/unix"

// otherABI is 0: the architecture has a single ABI.
const otherABI = 0

var oldCalls []call

// archName is the native architecture in OCI profiles.
const archName = "SCMP_ARCH_AARCH64"

const foreignArch = unix.AUDIT_ARCH_ARM

// foreignCalls are calls of 32-bit ARM (arch/arm/tools/syscall.tbl), which has no
// socketcall.
var foreignCalls = []call{
	{"socket", 281, allowedFamilies{}},
	{"bind", 282, refused{unix.ENOSYS}},
	{"connect", 283, refused{unix.ENOSYS}},
	{"listen", 284, refused{unix.ENOSYS}},
	{"socketpair", 288, allowedFamilies{}},
	{"sendto", 290, refused{unix.ENOSYS}},
	{"setsockopt", 294, refused{unix.ENOSYS}},
	{"sendmsg", 296, refused{unix.ENOSYS}},
	{"sendmmsg", 374, refused{unix.ENOSYS}},
	{"io_uring_setup", 425, refused{unix.ENOSYS}},
}

// foreignSocketCalls are the calls of 32-bit ARM that make sockets.
var foreignSocketCalls = []call{
	{"socket", 281, allowedFamilies{}},
	{"socketpair", 288, allowedFamilies{}},
	{"io_uring_setup", 425, refused{unix.ENOSYS}},
}
