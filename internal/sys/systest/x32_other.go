//go:build !amd64

package systest

import "golang.org/x/sys/unix"

// HasX32 returns false.
func HasX32() bool { return false }

// ConnectByX32 fails.
func ConnectByX32(int, []byte) unix.Errno { return unix.ENOSYS }
