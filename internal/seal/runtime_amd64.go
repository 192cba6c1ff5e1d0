package seal

import "golang.org/x/sys/unix"

// archCalls are calls that newer architectures lack.
func archCalls() []Call {
	return []Call{
		{Number: unix.SYS_EPOLL_WAIT}, {Number: unix.SYS_POLL}, {Number: unix.SYS_NEWFSTATAT}, {Number: unix.SYS_TIME},
		// a new thread's thread-local storage pointer
		{Number: unix.SYS_ARCH_PRCTL, When: []Condition{ArgIs(0, archSetFS)}},
	}
}

// archSetFS is ARCH_SET_FS (arch/x86/include/uapi/asm/prctl.h).
const archSetFS = 0x1002
