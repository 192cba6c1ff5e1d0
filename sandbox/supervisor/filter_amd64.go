package supervisor

import "golang.org/x/sys/unix"

// otherABI marks the calls of x32 (__X32_SYSCALL_BIT, arch/x86/include/uapi/asm/unistd.h).
const otherABI = 0x40000000

// oldCalls are those that newer architectures lack.
var oldCalls = []call{
	{"epoll_create", unix.SYS_EPOLL_CREATE, supervised{}},
	{"dup2", unix.SYS_DUP2, supervisedBeyondStdio{1}},
}

// archName is the native architecture in OCI profiles.
const archName = "SCMP_ARCH_X86_64"

const foreignArch = unix.AUDIT_ARCH_I386

// foreignCalls are calls of i386 (arch/x86/entry/syscalls/syscall_32.tbl). socketcall is
// one number for all socket calls, whose arguments are in memory.
var foreignCalls = []call{
	{"socketcall", 102, refused{unix.ENOSYS}},
	{"sendmmsg", 345, refused{unix.ENOSYS}},
	{"socket", 359, allowedFamilies{}},
	{"socketpair", 360, allowedFamilies{}},
	{"bind", 361, refused{unix.ENOSYS}},
	{"connect", 362, refused{unix.ENOSYS}},
	{"listen", 363, refused{unix.ENOSYS}},
	{"setsockopt", 366, refused{unix.ENOSYS}},
	{"sendto", 369, refused{unix.ENOSYS}},
	{"sendmsg", 370, refused{unix.ENOSYS}},
	{"io_uring_setup", 425, refused{unix.ENOSYS}},
}

// foreignSocketCalls are the calls of i386 that make sockets. The family argument of
// socketcall is in memory, where a filter can't read it; the subcall is in a register.
var foreignSocketCalls = []call{
	{"socketcall", 102, refusedValues{[]uint32{1, 8}, unix.ENOSYS}}, // SYS_SOCKET, SYS_SOCKETPAIR (include/uapi/linux/net.h)
	{"socket", 359, allowedFamilies{}},
	{"socketpair", 360, allowedFamilies{}},
	{"io_uring_setup", 425, refused{unix.ENOSYS}},
}
