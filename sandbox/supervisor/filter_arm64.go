package supervisor

import "golang.org/x/sys/unix"

// otherABI: there is none by the same architecture number.
const otherABI = 0

var oldCalls []call

const archName = "SCMP_ARCH_AARCH64"

const foreignArch = unix.AUDIT_ARCH_ARM

// foreignCalls of 32-bit ARM (arch/arm/tools/syscall.tbl).
var foreignCalls = []uint32{
	282, // bind
	283, // connect
	284, // listen
	290, // sendto
	294, // setsockopt
	296, // sendmsg
	374, // sendmmsg
	425, // io_uring_setup
}
