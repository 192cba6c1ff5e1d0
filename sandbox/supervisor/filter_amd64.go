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
var foreignCalls = []uint32{
	102, // socketcall
	345, // sendmmsg
	361, // bind
	362, // connect
	363, // listen
	366, // setsockopt
	369, // sendto
	370, // sendmsg
	425, // io_uring_setup
}
