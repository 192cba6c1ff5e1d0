package sandbox

import (
	"cleat/internal/seal"

	"golang.org/x/sys/unix"
)

// archCalls returns the system calls that not every architecture has.
func archCalls() []seal.Call {
	return []seal.Call{{Number: unix.SYS_ACCEPT}}
}
