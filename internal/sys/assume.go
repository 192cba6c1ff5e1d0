package sys

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Credentials are the identity that the kernel checks when a thread accesses files.
type Credentials struct {
	UID, GID int // UID and GID in the thread's user namespace
	Groups   []int
	// KeepGroups leaves the supplementary groups alone, for user namespaces that forbid
	// setting them (user_namespaces(7)).
	KeepGroups bool
	Caps       uint64 // effective set, limited to what the thread has
	Umask      int
}

// Assume gives the calling thread alone new credentials, a root and a working directory.
// It needs CAP_SYS_CHROOT, CAP_SETUID, CAP_SETGID and search permission on both
// directories. The thread cannot go back: lock the goroutine to it (runtime.LockOSThread)
// and never unlock, so that the thread ends with the goroutine. After an error the thread
// may be in between.
func Assume(c Credentials, root, cwd int) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare root and working directory: %w", err)
	}
	if err := unix.Fchdir(root); err != nil {
		return fmt.Errorf("enter root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("change root: %w", err)
	}
	if err := unix.Fchdir(cwd); err != nil {
		return fmt.Errorf("enter working directory: %w", err)
	}
	unix.Umask(c.Umask)
	groups := make([]uint32, len(c.Groups))
	for i, g := range c.Groups {
		groups[i] = uint32(g)
	}
	header, data, err := capabilities()
	if err != nil {
		return err
	}
	for i := range data {
		keep := data[i].Permitted & uint32(c.Caps>>(32*i))
		data[i] = unix.CapUserData{Effective: keep, Permitted: keep}
	}
	// Package unix would apply most of these to all threads.
	var errno unix.Errno
	if !c.KeepGroups {
		_, _, errno = unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(unsafe.SliceData(groups))), 0)
	}
	if errno != 0 {
		return fmt.Errorf("set groups: %w", errno)
	}
	if _, _, errno = unix.RawSyscall(unix.SYS_SETRESGID, uintptr(c.GID), uintptr(c.GID), uintptr(c.GID)); errno != 0 {
		return fmt.Errorf("set group: %w", errno)
	}
	if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("keep capabilities: %w", err)
	}
	if _, _, errno = unix.RawSyscall(unix.SYS_SETRESUID, uintptr(c.UID), uintptr(c.UID), uintptr(c.UID)); errno != 0 {
		return fmt.Errorf("set user: %w", errno)
	}
	if err := unix.Capset(&header, &data[0]); err != nil {
		return fmt.Errorf("set capabilities: %w", err)
	}
	return nil
}
