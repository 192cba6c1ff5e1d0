package sys

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Notification is a system call that a seccomp filter has handed to a
// supervisor; the thread waits (struct seccomp_notif,
// include/uapi/linux/seccomp.h).
type Notification struct {
	ID    uint64
	TID   uint32 // the thread, as the supervisor's process id namespace has it; 0: it is in none of that
	Flags uint32
	Nr    int32
	Arch  uint32
	IP    uint64
	Args  [6]uint64
	_     [176]byte // for kernels to come: they write as much as they have
}

// notifyResponse is struct seccomp_notif_resp.
type notifyResponse struct {
	id    uint64
	val   int64
	err   int32
	flags uint32
}

// notifyAddfd is struct seccomp_notif_addfd.
type notifyAddfd struct {
	id    uint64
	flags uint32
	src   uint32
	to    uint32
	how   uint32
}

// Requests to the descriptor of a filter's notifications. Their numbers hold the
// structures' sizes; a kernel with longer ones knows these too.
const (
	notifyRecv     = 0xc0502100
	notifySend     = 0xc0182101
	notifyIDValid  = 0x40082102
	notifyAddfdReq = 0x40182103
	notifySetFlags = 0x40082104
)

// NotifyRequests are the ioctl(2) requests that a supervisor makes.
var NotifyRequests = []uint32{notifyRecv, notifySend, notifyIDValid, notifyAddfdReq, notifySetFlags}

// AddNotifyFilter puts a filter on the calling thread and what it becomes and
// makes, and returns the descriptor by which its notifications come. The thread
// needs CAP_SYS_ADMIN in its user namespace, or no_new_privs. It can have one
// such filter: EBUSY says that it has, as where one supervisor runs in another.
func AddNotifyFilter(filter []bpf.RawInstruction) (int, error) {
	return addFilter(filter, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW)
}

// AddPatientFilter is AddNotifyFilter whose notifications, once taken, only the end of
// the caller takes back (SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, Linux 5.19): other
// signals wait. EINVAL says that the kernel is older.
func AddPatientFilter(filter []bpf.RawInstruction) (int, error) {
	return addFilter(filter, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)
}

// WakeHere has callers and supervisor wake each other on the processor that they
// are on (SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP, Linux 6.6): one waits for the other
// anyhow. Where the kernel can't nothing changes.
func WakeHere(fd int) { _ = unix.IoctlSetInt(fd, notifySetFlags, 1) }

// NextNotification takes one that poll(2) has announced. ENOENT says that the
// thread is gone, or has left for a signal handler.
func NextNotification(fd int, n *Notification) unix.Errno {
	*n = Notification{}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), notifyRecv, uintptr(unsafe.Pointer(n)))
	return errno
}

// NotificationLives tells whether the thread still waits. What was read of its
// memory or its descriptors before was its own if it does.
func NotificationLives(fd int, id uint64) bool {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), notifyIDValid, uintptr(unsafe.Pointer(&id)))
	return errno == 0
}

// AnswerNotification has the call return 0, or fail with result.
func AnswerNotification(fd int, id uint64, result unix.Errno) unix.Errno {
	return answer(fd, &notifyResponse{id: id, err: -int32(result)})
}

// AnswerNumber has the call return a number.
func AnswerNumber(fd int, id uint64, number int) unix.Errno {
	return answer(fd, &notifyResponse{id: id, val: int64(number)})
}

// ContinueNotification has the kernel carry the call out, with whatever its
// arguments point to by then.
func ContinueNotification(fd int, id uint64) unix.Errno {
	return answer(fd, &notifyResponse{id: id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE})
}

func answer(fd int, r *notifyResponse) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), notifySend, uintptr(unsafe.Pointer(r)))
	return errno
}

// ReplaceDescriptor puts a duplicate of own in the place of a descriptor of the
// thread that waits.
func ReplaceDescriptor(fd int, id uint64, own, theirs int, closeOnExec bool) unix.Errno {
	return addDescriptor(fd, &notifyAddfd{id: id, flags: unix.SECCOMP_ADDFD_FLAG_SETFD, src: uint32(own), to: uint32(theirs)}, closeOnExec)
}

// GiveDescriptor gives the thread that waits a duplicate of own, and returns the
// number that it has there; the thread waits on. A signal between this and the answer
// would have the caller begin again, with a descriptor too many, but for those of
// AddPatientFilter.
func GiveDescriptor(fd int, id uint64, own int, closeOnExec bool) (theirs int, errno unix.Errno) {
	return requestDescriptor(fd, &notifyAddfd{id: id, src: uint32(own)}, closeOnExec)
}

func addDescriptor(fd int, r *notifyAddfd, closeOnExec bool) unix.Errno {
	_, errno := requestDescriptor(fd, r, closeOnExec)
	return errno
}

func requestDescriptor(fd int, r *notifyAddfd, closeOnExec bool) (theirs int, errno unix.Errno) {
	if closeOnExec {
		r.how = unix.O_CLOEXEC
	}
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), notifyAddfdReq, uintptr(unsafe.Pointer(r)))
	return int(n), errno
}

// Kinds of comparison of kcmp(2) (include/uapi/linux/kcmp.h).
const (
	kcmpFile     = 0
	kcmpEpollTFD = 7
)

// SameFile tells whether two descriptors of a thread are the same open file.
func SameFile(tid, a, b int) bool {
	r, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(tid), uintptr(tid), kcmpFile, uintptr(a), uintptr(b), 0)
	return errno == 0 && r == 0
}

// InEpoll tells whether an epoll instance of a thread's waits for one of its
// descriptors. EBADF and EINVAL say that epfd is none, or none any more.
func InEpoll(tid, fd, epfd int) (bool, unix.Errno) {
	slot := struct{ efd, tfd, toff uint32 }{uint32(epfd), uint32(fd), 0}
	r, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(tid), uintptr(tid), kcmpEpollTFD, uintptr(fd), uintptr(unsafe.Pointer(&slot)), 0)
	if errno == unix.ENOENT {
		return false, 0
	}
	return errno == 0 && r == 0, errno
}

// Landlock's rights over TCP (include/uapi/linux/landlock.h; ABI 4, Linux 6.7).
const (
	landlockBindTCP    = 1 << 0
	landlockConnectTCP = 1 << 1
	landlockNetworkABI = 4
)

// ErrNoLandlock says that the kernel has no Landlock with rules for TCP.
var ErrNoLandlock = errors.New("the kernel has no Landlock that knows TCP: it takes Linux 6.7, with landlock among its security modules")

// NoTCP makes Landlock rules, for RestrictSelf, that keep a thread from connecting or
// binding TCP sockets by itself, in whatever network namespace. The result is the
// caller's to close.
func NoTCP() (rules int, err error) {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 || abi < landlockNetworkABI {
		return -1, ErrNoLandlock
	}
	attr := struct{ fs, net uint64 }{net: landlockBindTCP | landlockConnectTCP}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return -1, fmt.Errorf("make Landlock rules: %w", errno)
	}
	return int(fd), nil
}

// RestrictSelf puts Landlock rules on the calling thread, and on what it becomes and
// makes. It needs CAP_SYS_ADMIN in its user namespace, or no_new_privs.
func RestrictSelf(rules int) error {
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(rules), 0, 0); errno != 0 {
		return fmt.Errorf("set Landlock rules: %w", errno)
	}
	return nil
}
