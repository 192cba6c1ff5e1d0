package sandbox

import (
	"cleat/internal/seal"

	"golang.org/x/sys/unix"
)

// archCalls are the system calls that not every architecture has.
var archCalls = []seal.Call{{Number: unix.SYS_ACCEPT}}
