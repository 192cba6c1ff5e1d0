package sandbox

import (
	"cleat/internal/seal"

	"golang.org/x/sys/unix"
)

// archCalls returns the system calls that newer architectures lack.
func archCalls() []seal.Call {
	return []seal.Call{{Number: unix.SYS_READLINK}, {Number: unix.SYS_ACCEPT}}
}
