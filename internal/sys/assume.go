package sys

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Credentials are what the kernel asks a thread for when it touches files.
type Credentials struct {
	UID, GID int // in the thread's user namespace, as the next
	Groups   []int
	// KeepGroups leaves the groups as they are, where the user namespace forbids to
	// choose any (user_namespaces(7)).
	KeepGroups bool
	Caps       uint64 // effective ones; no more than the thread has are kept
	Umask      int
}

// Assume gives the calling thread, and no other, credentials, a root and a working
// directory. It needs CAP_SYS_CHROOT, CAP_SETUID, CAP_SETGID and the right to
// search both. The thread can't be what it was again: lock it, and let it end
// locked. After an error it is neither one nor the other.
func Assume(c Credentials, root, cwd int) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("have a root of its own: %w", err)
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
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	for i := range data {
		keep := data[i].Permitted & uint32(c.Caps>>(32*i))
		data[i] = unix.CapUserData{Effective: keep, Permitted: keep}
	}
	// Package unix would have all threads do most of these.
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
