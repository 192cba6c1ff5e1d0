package supervisor

import (
	"golang.org/x/sys/unix"
)

// otherABI marks the calls of x32 (__X32_SYSCALL_BIT, arch/x86/include/uapi/asm/unistd.h).
const otherABI = 0x40000000

// oldCalls are those that newer machines no longer have.
var oldCalls = []call{
	{"epoll_create", unix.SYS_EPOLL_CREATE, told{}},
	{"dup2", unix.SYS_DUP2, toldBeyondStdio{1}},
}

// archName is ours as profiles have it.
const archName = "SCMP_ARCH_X86_64"

const foreignArch = unix.AUDIT_ARCH_I386

// foreignCalls of i386 (arch/x86/entry/syscalls/syscall_32.tbl). Socketcall is
// one number for all that has to do with sockets, with arguments in memory.
var foreignCalls = []foreignCall{
	{"socketcall", 102, refused{unix.ENOSYS}},
	{"sendmmsg", 345, refused{unix.ENOSYS}},
	{"socket", 359, ofFamilies{}},
	{"socketpair", 360, ofFamilies{}},
	{"bind", 361, refused{unix.ENOSYS}},
	{"connect", 362, refused{unix.ENOSYS}},
	{"listen", 363, refused{unix.ENOSYS}},
	{"setsockopt", 366, refused{unix.ENOSYS}},
	{"sendto", 369, refused{unix.ENOSYS}},
	{"sendmsg", 370, refused{unix.ENOSYS}},
	{"io_uring_setup", 425, refused{unix.ENOSYS}},
}

// foreignSocketCalls of i386 make sockets. Of socketcall's the family is in memory, where
// no filter sees it, and which call it stands for is in a register.
var foreignSocketCalls = []foreignCall{
	{"socketcall", 102, without{[]uint32{1, 8}, unix.ENOSYS}}, // SYS_SOCKET, SYS_SOCKETPAIR (include/uapi/linux/net.h)
	{"socket", 359, ofFamilies{}},
	{"socketpair", 360, ofFamilies{}},
	{"io_uring_setup", 425, refused{unix.ENOSYS}},
}
