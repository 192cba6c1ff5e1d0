package sys

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"
)

// SetNoNewPrivileges has no execve of any thread gain anything from now on.
func SetNoNewPrivileges() error {
	if _, _, e := psx.Syscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); e != 0 {
		return fmt.Errorf("set no_new_privs: %w", e)
	}
	return nil
}

// DropCapabilities gives up all capabilities of all threads but those of a set
// that the process has (bit n is capability n), and the ambient ones.
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

// Capabilities are those that the calling thread may use or take into use: bit n is
// capability n.
func Capabilities() (uint64, error) {
	_, data, err := capabilities()
	return uint64(data[0].Permitted) | uint64(data[1].Permitted)<<32, err
}

// capabilities are those of the calling thread.
func capabilities() (unix.CapUserHeader, [2]unix.CapUserData, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return header, data, fmt.Errorf("read capabilities: %w", err)
	}
	return header, data, nil
}

// WithCapabilities calls do on a thread that has, for the time being, no other
// capabilities in use than those of a set (bit n is capability n), and returns its
// error: a way to learn what can be done without.
func WithCapabilities(set uint64, do func() error) error {
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		right, err := withCapabilities(set, do)
		if right {
			runtime.UnlockOSThread() // any other thread ends here
		}
		failed <- err
	}()
	return <-failed
}

// withCapabilities does so on the calling thread, and tells whether that is as it was.
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
		return true, fmt.Errorf("lay capabilities aside: %w", err)
	}
	err = do()
	return unix.Capset(&header, &data[0]) == nil, err
}

// DropThreadGroups takes the supplementary groups from the calling thread alone: it is for a
// locked thread that ends soon. setgroups(2) of package syscall is for all threads.
func DropThreadGroups() error {
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); e != 0 {
		return fmt.Errorf("drop supplementary groups: %w", e)
	}
	return nil
}
