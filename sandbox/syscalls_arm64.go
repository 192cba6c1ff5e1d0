package sandbox

import (
	"cleat/internal/seal"

	"golang.org/x/sys/unix"
)

// archCalls are those that not every machine has.
func archCalls() []seal.Call {
	return []seal.Call{{Number: unix.SYS_ACCEPT}}
}
