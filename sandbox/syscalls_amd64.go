package sandbox

import "golang.org/x/sys/unix"

// archCalls are those that newer machines no longer have.
var archCalls = []call{
	{nr: unix.SYS_EPOLL_WAIT}, {nr: unix.SYS_POLL}, {nr: unix.SYS_NEWFSTATAT}, {nr: unix.SYS_READLINK}, {nr: unix.SYS_ACCEPT},
	{nr: unix.SYS_TIME},
	// a new thread's pointer to its own storage
	{nr: unix.SYS_ARCH_PRCTL, when: []condition{argIs(0, archSetFS)}},
}

// archSetFS is ARCH_SET_FS (arch/x86/include/uapi/asm/prctl.h).
const archSetFS = 0x1002
