package sys

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"
)

// SetNoNewPrivileges keeps every later execve of any thread from gaining privileges.
func SetNoNewPrivileges() error {
	if _, _, e := psx.Syscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); e != 0 {
		return fmt.Errorf("set no_new_privs: %w", e)
	}
	return nil
}

// DropCapabilities drops, on all threads, every capability that is not in the set (bit n
// is capability n), and all ambient ones. The process must have those in the set.
func DropCapabilities(but uint64) error {
	header, data, err := capabilities()
	if err != nil {
		return err
	}
	for i := range data {
		keep := data[i].Effective & uint32(but>>(32*i))
		data[i] = unix.CapUserData{Effective: keep, Permitted: keep}
	}
	_, _, e := psx.Syscall3(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data)), 0)
	runtime.KeepAlive(&header)
	runtime.KeepAlive(&data)
	if e != 0 {
		return fmt.Errorf("drop capabilities: %w", e)
	}
	return nil
}

// Capabilities returns the calling thread's permitted capabilities; bit n is capability
// n.
func Capabilities() (uint64, error) {
	_, data, err := capabilities()
	return uint64(data[0].Permitted) | uint64(data[1].Permitted)<<32, err
}

// capabilities reads the calling thread's capability sets.
func capabilities() (unix.CapUserHeader, [2]unix.CapUserData, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return header, data, fmt.Errorf("read capabilities: %w", err)
	}
	return header, data, nil
}

// WithCapabilities calls do on a thread whose effective capabilities are only those in
// the set (bit n is capability n), and returns its error. So a caller can find out what
// works without the others.
func WithCapabilities(set uint64, do func() error) error {
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		right, err := withCapabilities(set, do)
		if right {
			runtime.UnlockOSThread() // the locked thread ends with this goroutine
		}
		failed <- err
	}()
	return <-failed
}

// withCapabilities does so on the calling thread, and reports whether the thread's
// capabilities were restored.
func withCapabilities(set uint64, do func() error) (right bool, err error) {
	header, data, err := capabilities()
	if err != nil {
		return true, err
	}
	fewer := data
	for i := range fewer {
		fewer[i].Effective &= uint32(set >> (32 * i))
	}
	if err := unix.Capset(&header, &fewer[0]); err != nil {
		return true, fmt.Errorf("drop effective capabilities: %w", err)
	}
	err = do()
	return unix.Capset(&header, &data[0]) == nil, err
}

// DropThreadGroups drops the supplementary groups of the calling thread alone, unlike
// package syscall's Setgroups. Use it on a locked thread that ends soon.
func DropThreadGroups() error {
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); e != 0 {
		return fmt.Errorf("drop supplementary groups: %w", e)
	}
	return nil
}
