package sys

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Notification is a system call that a seccomp filter passed to a supervisor. The calling
// thread waits (struct seccomp_notif, include/uapi/linux/seccomp.h).
type Notification struct {
	ID    uint64
	TID   uint32 // the thread in the supervisor's process id namespace; 0 if it is not in it
	Flags uint32
	Nr    int32
	Arch  uint32
	IP    uint64
	Args  [6]uint64
	_     [176]byte // room for later kernels, whose structure is longer
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

// Requests on the notification descriptor of a filter. Their numbers contain the
// structures' sizes; a kernel with longer structures accepts these too.
const (
	notifyRecv     = 0xc0502100
	notifySend     = 0xc0182101
	notifyIDValid  = 0x40082102
	notifyAddfdReq = 0x40182103
	notifySetFlags = 0x40082104
)

// NotifyRequests are the ioctl(2) requests that a supervisor makes.
var NotifyRequests = []uint32{notifyRecv, notifySend, notifyIDValid, notifyAddfdReq, notifySetFlags}

// AddNotifyFilter installs a filter on the calling thread and its descendants, and
// returns the descriptor that delivers its notifications. The thread needs CAP_SYS_ADMIN
// in its user namespace, or no_new_privs. A thread can have one such filter: EBUSY means
// that it has one already, as in a supervisor inside another.
func AddNotifyFilter(filter []bpf.RawInstruction) (int, error) {
	return addFilter(filter, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW)
}

// AddPatientFilter is AddNotifyFilter with SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (Linux
// 5.19): once the supervisor has received a notification, only a fatal signal interrupts
// the caller. EINVAL means an older kernel.
func AddPatientFilter(filter []bpf.RawInstruction) (int, error) {
	return addFilter(filter, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)
}

// WakeHere makes the kernel wake caller and supervisor on the processor of the other
// (SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP, Linux 6.6), as only one of them runs at a time.
// Older kernels ignore it.
func WakeHere(fd int) { _ = unix.IoctlSetInt(fd, notifySetFlags, 1) }

// NextNotification receives a notification that poll(2) announced. ENOENT means that the
// thread has died or entered a signal handler.
func NextNotification(fd int, n *Notification) unix.Errno {
	*n = Notification{}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), notifyRecv, uintptr(unsafe.Pointer(n)))
	return errno
}

// NotificationLives reports whether the thread still waits. If so, its memory and
// descriptors read before this call were its own, not those of a later process with the
// same id.
func NotificationLives(fd int, id uint64) bool {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), notifyIDValid, uintptr(unsafe.Pointer(&id)))
	return errno == 0
}

// AnswerNotification makes the call return 0, or fail with result.
func AnswerNotification(fd int, id uint64, result unix.Errno) unix.Errno {
	return answer(fd, &notifyResponse{id: id, err: -int32(result)})
}

// AnswerNumber makes the call return a number.
func AnswerNumber(fd int, id uint64, number int) unix.Errno {
	return answer(fd, &notifyResponse{id: id, val: int64(number)})
}

// ContinueNotification lets the kernel execute the call, with whatever its arguments
// point to by then.
func ContinueNotification(fd int, id uint64) unix.Errno {
	return answer(fd, &notifyResponse{id: id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE})
}

func answer(fd int, r *notifyResponse) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), notifySend, uintptr(unsafe.Pointer(r)))
	return errno
}

// ReplaceDescriptor replaces a descriptor of the waiting thread with a duplicate of own.
func ReplaceDescriptor(fd int, id uint64, own, theirs int, closeOnExec bool) unix.Errno {
	_, errno := requestDescriptor(fd, &notifyAddfd{id: id, flags: unix.SECCOMP_ADDFD_FLAG_SETFD, src: uint32(own), to: uint32(theirs)}, closeOnExec)
	return errno
}

// GiveDescriptor adds a duplicate of own to the waiting thread, which continues to wait,
// and returns its number there. Unless the filter is AddPatientFilter's, a signal before
// the answer makes the caller repeat the call, and the descriptor leaks.
func GiveDescriptor(fd int, id uint64, own int, closeOnExec bool) (theirs int, errno unix.Errno) {
	return requestDescriptor(fd, &notifyAddfd{id: id, src: uint32(own)}, closeOnExec)
}

func requestDescriptor(fd int, r *notifyAddfd, closeOnExec bool) (theirs int, errno unix.Errno) {
	if closeOnExec {
		r.how = unix.O_CLOEXEC
	}
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), notifyAddfdReq, uintptr(unsafe.Pointer(r)))
	return int(n), errno
}

// Types of comparison of kcmp(2) (include/uapi/linux/kcmp.h).
const (
	kcmpFile     = 0
	kcmpEpollTFD = 7
)

// SameFile reports whether two descriptors of a thread refer to the same open file.
func SameFile(tid, a, b int) bool {
	r, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(tid), uintptr(tid), kcmpFile, uintptr(a), uintptr(b), 0)
	return errno == 0 && r == 0
}

// InEpoll reports whether an epoll instance of a thread contains one of its descriptors.
// EBADF and EINVAL mean that epfd is not, or no longer, an epoll instance.
func InEpoll(tid, fd, epfd int) (bool, unix.Errno) {
	slot := struct{ efd, tfd, toff uint32 }{uint32(epfd), uint32(fd), 0}
	r, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(tid), uintptr(tid), kcmpEpollTFD, uintptr(fd), uintptr(unsafe.Pointer(&slot)), 0)
	if errno == unix.ENOENT {
		return false, 0
	}
	return errno == 0 && r == 0, errno
}

// Landlock access rights for TCP (include/uapi/linux/landlock.h; ABI 4, Linux 6.7).
const (
	landlockBindTCP    = 1 << 0
	landlockConnectTCP = 1 << 1
	landlockNetworkABI = 4
)

// ErrNoLandlock means that the kernel's Landlock has no rules for TCP.
var ErrNoLandlock = errors.New("the kernel has no Landlock that knows TCP: it takes Linux 6.7, with landlock among its security modules")

// NoTCP creates a Landlock ruleset for RestrictSelf that forbids connecting and binding
// TCP sockets, in any network namespace. The caller closes the result.
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

// RestrictSelf applies a Landlock ruleset to the calling thread and its descendants. It
// needs CAP_SYS_ADMIN in its user namespace, or no_new_privs.
func RestrictSelf(rules int) error {
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(rules), 0, 0); errno != 0 {
		return fmt.Errorf("set Landlock rules: %w", errno)
	}
	return nil
}
