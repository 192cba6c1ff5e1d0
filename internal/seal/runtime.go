package seal

import (
	"os"

	"golang.org/x/sys/unix"
)

// Runtime lists the calls that the Go runtime, package os and package net need on every
// architecture to read files, wait for open descriptors, and exit. The most frequent come
// first: kernels before 5.11 run the filter on every call; later ones cache the result
// for calls without conditions.
func Runtime() []Call {
	calls := []Call{
		// reading and writing
		{Number: unix.SYS_READ}, {Number: unix.SYS_WRITE}, {Number: unix.SYS_EPOLL_PWAIT}, {Number: unix.SYS_FUTEX},
		{Number: unix.SYS_READV}, {Number: unix.SYS_WRITEV}, {Number: unix.SYS_PREAD64}, {Number: unix.SYS_PWRITE64},

		// descriptors
		{Number: unix.SYS_CLOSE},
		// not F_SETOWN and F_SETSIG: together they send any signal to any process of the
		// user
		{Number: unix.SYS_FCNTL, When: []Condition{ArgIs(1, unix.F_GETFD, unix.F_SETFD, unix.F_GETFL, unix.F_SETFL,
			unix.F_DUPFD_CLOEXEC, unix.F_SETPIPE_SZ)}},
		{Number: unix.SYS_EPOLL_CREATE1}, {Number: unix.SYS_EPOLL_CTL}, {Number: unix.SYS_EPOLL_PWAIT2}, {Number: unix.SYS_EVENTFD2},
		{Number: unix.SYS_PPOLL}, {Number: unix.SYS_FSTAT}, {Number: unix.SYS_STATX},
		// read-only, and without creating files
		{Number: unix.SYS_OPENAT, When: []Condition{ArgLacks(2, unix.O_ACCMODE|unix.O_CREAT|unix.O_TRUNC|unix.O_TMPFILE&^unix.O_DIRECTORY|unix.O_PATH)}},

		// memory, never executable
		{Number: unix.SYS_MMAP, When: []Condition{ArgLacks(2, unix.PROT_EXEC)}},
		{Number: unix.SYS_MPROTECT, When: []Condition{ArgLacks(2, unix.PROT_EXEC)}},
		{Number: unix.SYS_MUNMAP}, {Number: unix.SYS_MADVISE}, {Number: unix.SYS_MREMAP}, {Number: unix.SYS_MINCORE}, {Number: unix.SYS_BRK},
		{Number: unix.SYS_MEMBARRIER}, {Number: unix.SYS_PRCTL, When: []Condition{ArgIs(0, unix.PR_SET_VMA, unix.PR_SET_NAME)}},

		// threads, but no processes: a thread shares memory, files and signal handlers
		{Number: unix.SYS_CLONE, When: []Condition{ArgHas(0, threadFlags|newNamespaces, threadFlags)}},
		{Number: unix.SYS_SET_ROBUST_LIST}, {Number: unix.SYS_RSEQ}, {Number: unix.SYS_GETTID}, {Number: unix.SYS_SCHED_YIELD},
		{Number: unix.SYS_SCHED_GETAFFINITY}, {Number: unix.SYS_EXIT}, {Number: unix.SYS_EXIT_GROUP},
		{Number: unix.SYS_RT_SIGACTION}, {Number: unix.SYS_RT_SIGPROCMASK}, {Number: unix.SYS_RT_SIGRETURN}, {Number: unix.SYS_SIGALTSTACK},
		{Number: unix.SYS_RESTART_SYSCALL}, {Number: unix.SYS_TGKILL, When: []Condition{ArgIs(0, uint32(os.Getpid()))}},

		// time and random numbers
		{Number: unix.SYS_CLOCK_GETTIME}, {Number: unix.SYS_CLOCK_GETRES}, {Number: unix.SYS_CLOCK_NANOSLEEP}, {Number: unix.SYS_NANOSLEEP},
		{Number: unix.SYS_GETTIMEOFDAY}, {Number: unix.SYS_GETRANDOM}, {Number: unix.SYS_SETITIMER},
		{Number: unix.SYS_TIMER_CREATE}, {Number: unix.SYS_TIMER_SETTIME}, {Number: unix.SYS_TIMER_DELETE},

		// identity
		{Number: unix.SYS_GETPID}, {Number: unix.SYS_GETPPID}, {Number: unix.SYS_GETUID}, {Number: unix.SYS_GETEUID},
		{Number: unix.SYS_GETGID}, {Number: unix.SYS_GETEGID}, {Number: unix.SYS_GETRUSAGE}, {Number: unix.SYS_UNAME},
		{Number: unix.SYS_SYSINFO}, {Number: unix.SYS_GETCPU},
		{Number: unix.SYS_PRLIMIT64, When: []Condition{ArgIs(2, 0), ArgHighIs(2, 0)}}, // reading limits, not setting them
	}
	return append(calls, archCalls()...)
}

// threadFlags are the clone(2) flags that make a thread; the Go runtime sets more.
const threadFlags = unix.CLONE_THREAD | unix.CLONE_SIGHAND | unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES

const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET
