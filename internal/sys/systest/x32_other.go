//go:build !amd64

package systest

import "golang.org/x/sys/unix"

// HasX32 tells that there is no x32.
func HasX32() bool { return false }

// ConnectByX32 fails.
func ConnectByX32(int, []byte) unix.Errno { return unix.ENOSYS }
