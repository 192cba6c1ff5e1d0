package sandbox

import (
	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// sealedCalls are what the Go runtime, package net and the data path need, on
// every machine. The most frequent come first: kernels before 5.11 run the
// filter for each call, later ones remember those without conditions.
var sealedCalls = []call{
	// bytes
	{nr: unix.SYS_READ}, {nr: unix.SYS_WRITE}, {nr: unix.SYS_RECVFROM}, {nr: unix.SYS_SENDTO},
	{nr: unix.SYS_EPOLL_PWAIT}, {nr: unix.SYS_SENDMMSG}, {nr: unix.SYS_RECVMMSG}, {nr: unix.SYS_FUTEX},
	{nr: unix.SYS_SENDMSG}, {nr: unix.SYS_RECVMSG}, {nr: unix.SYS_READV}, {nr: unix.SYS_WRITEV},
	{nr: unix.SYS_PREAD64}, {nr: unix.SYS_PWRITE64}, {nr: unix.SYS_PREADV2}, {nr: unix.SYS_PWRITEV2},
	{nr: unix.SYS_SPLICE}, {nr: unix.SYS_SENDFILE}, {nr: unix.SYS_LSEEK}, {nr: unix.SYS_FSYNC}, {nr: unix.SYS_FDATASYNC},
	{nr: unix.SYS_FTRUNCATE}, // a log of bounded size

	// sockets: of IPv4 and IPv6, and neither raw nor packet ones
	{nr: unix.SYS_SOCKET, when: []condition{
		argIs(0, unix.AF_INET, unix.AF_INET6),
		{arg: 1, mask: 0xf, any: []uint32{unix.SOCK_STREAM, unix.SOCK_DGRAM}}, // SOCK_TYPE_MASK
	}},
	{nr: unix.SYS_CONNECT}, {nr: unix.SYS_BIND}, {nr: unix.SYS_LISTEN}, {nr: unix.SYS_ACCEPT4},
	{nr: unix.SYS_GETSOCKOPT}, {nr: unix.SYS_SETSOCKOPT}, {nr: unix.SYS_GETSOCKNAME}, {nr: unix.SYS_GETPEERNAME},
	{nr: unix.SYS_SHUTDOWN},
	// one end of a pair is what the data path sees of a connection that is none of the kernel's
	{nr: unix.SYS_SOCKETPAIR, when: []condition{argIs(0, unix.AF_UNIX)}},

	// descriptors
	{nr: unix.SYS_CLOSE}, {nr: unix.SYS_FCNTL}, {nr: unix.SYS_DUP}, {nr: unix.SYS_DUP3}, {nr: unix.SYS_PIPE2},
	{nr: unix.SYS_EPOLL_CREATE1}, {nr: unix.SYS_EPOLL_CTL}, {nr: unix.SYS_EPOLL_PWAIT2}, {nr: unix.SYS_EVENTFD2}, {nr: unix.SYS_PPOLL},
	{nr: unix.SYS_TIMERFD_CREATE}, {nr: unix.SYS_TIMERFD_SETTIME}, {nr: unix.SYS_FSTAT}, {nr: unix.SYS_FSTATFS},
	{nr: unix.SYS_STATX}, {nr: unix.SYS_READLINKAT}, {nr: unix.SYS_FACCESSAT}, {nr: unix.SYS_GETDENTS64},
	// for reading, and not one that makes a file
	{nr: unix.SYS_OPENAT, when: []condition{argLacks(2, unix.O_ACCMODE|unix.O_CREAT|unix.O_TRUNC|unix.O_TMPFILE&^unix.O_DIRECTORY|unix.O_PATH)}},

	// memory, none of it executable
	{nr: unix.SYS_MMAP, when: []condition{argLacks(2, unix.PROT_EXEC)}},
	{nr: unix.SYS_MPROTECT, when: []condition{argLacks(2, unix.PROT_EXEC)}},
	{nr: unix.SYS_MUNMAP}, {nr: unix.SYS_MADVISE}, {nr: unix.SYS_MREMAP}, {nr: unix.SYS_MINCORE}, {nr: unix.SYS_BRK},
	{nr: unix.SYS_MEMBARRIER}, {nr: unix.SYS_PRCTL, when: []condition{argIs(0, unix.PR_SET_VMA, unix.PR_SET_NAME)}},

	// threads, and no processes: a thread shares memory, files and signals
	{nr: unix.SYS_CLONE, when: []condition{
		argHas(0, threadFlags|newNamespaces, threadFlags),
	}},
	{nr: unix.SYS_SET_ROBUST_LIST}, {nr: unix.SYS_RSEQ}, {nr: unix.SYS_GETTID}, {nr: unix.SYS_SCHED_YIELD},
	{nr: unix.SYS_SCHED_GETAFFINITY}, {nr: unix.SYS_EXIT}, {nr: unix.SYS_EXIT_GROUP},
	{nr: unix.SYS_RT_SIGACTION}, {nr: unix.SYS_RT_SIGPROCMASK}, {nr: unix.SYS_RT_SIGRETURN}, {nr: unix.SYS_SIGALTSTACK},
	{nr: unix.SYS_RESTART_SYSCALL},

	// time and chance
	{nr: unix.SYS_CLOCK_GETTIME}, {nr: unix.SYS_CLOCK_GETRES}, {nr: unix.SYS_CLOCK_NANOSLEEP}, {nr: unix.SYS_NANOSLEEP},
	{nr: unix.SYS_GETTIMEOFDAY}, {nr: unix.SYS_GETRANDOM}, {nr: unix.SYS_SETITIMER},
	{nr: unix.SYS_TIMER_CREATE}, {nr: unix.SYS_TIMER_SETTIME}, {nr: unix.SYS_TIMER_DELETE},

	// who we are, and what became of the command
	{nr: unix.SYS_GETPID}, {nr: unix.SYS_GETPPID}, {nr: unix.SYS_GETUID}, {nr: unix.SYS_GETEUID}, {nr: unix.SYS_GETGID}, {nr: unix.SYS_GETEGID},
	{nr: unix.SYS_GETRUSAGE}, {nr: unix.SYS_UNAME}, {nr: unix.SYS_SYSINFO}, {nr: unix.SYS_GETCPU},
	{nr: unix.SYS_PRLIMIT64, when: []condition{argIs(2, 0), argHighIs(2, 0)}}, // reading: no new limit
	{nr: unix.SYS_WAIT4}, {nr: unix.SYS_WAITID},
}

// ioctls are requests about descriptors.
func ioctls(supervise bool) call {
	requests := []uint32{
		siocinq, siocoutq, siocatmark, fionbio, unix.TCGETS, unix.TIOCGWINSZ,
		unix.TUNGETIFF, unix.TUNGETVNETHDRSZ, unix.TUNSETQUEUE,
	}
	if supervise {
		requests = append(requests, sys.NotifyRequests...)
	}
	return call{nr: unix.SYS_IOCTL, when: []condition{argIs(1, requests...)}}
}

// superviseCalls look into other processes. The kernel still asks whether they
// may.
var superviseCalls = []call{
	{nr: unix.SYS_PIDFD_OPEN}, {nr: unix.SYS_PIDFD_GETFD}, {nr: unix.SYS_PROCESS_VM_READV}, {nr: unix.SYS_KCMP},
}

// killCalls send signals. The kernel still asks whether they may.
var killCalls = []call{{nr: unix.SYS_KILL}, {nr: unix.SYS_TGKILL}, {nr: unix.SYS_PIDFD_SEND_SIGNAL}}

// threadFlags are what makes a clone(2) a thread; the Go runtime's has more.
const threadFlags = unix.CLONE_THREAD | unix.CLONE_SIGHAND | unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES

const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// Requests of include/uapi/linux/sockios.h and asm-generic/ioctls.h.
const (
	siocinq    = 0x541b // FIONREAD
	siocoutq   = 0x5411 // TIOCOUTQ
	siocatmark = 0x8905
	fionbio    = 0x5421
)
