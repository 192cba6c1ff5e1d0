package sandbox

import (
	"cleat/internal/seal"

	"golang.org/x/sys/unix"
)

// archCalls are those that newer machines no longer have.
func archCalls() []seal.Call {
	return []seal.Call{{Number: unix.SYS_READLINK}, {Number: unix.SYS_ACCEPT}}
}
