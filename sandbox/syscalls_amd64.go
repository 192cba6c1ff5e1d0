package sandbox

import (
	"cleat/internal/seal"

	"golang.org/x/sys/unix"
)

// archCalls are the system calls that newer architectures lack.
var archCalls = []seal.Call{{Number: unix.SYS_READLINK}, {Number: unix.SYS_ACCEPT}}
