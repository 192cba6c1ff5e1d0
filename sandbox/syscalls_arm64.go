package sandbox

import "golang.org/x/sys/unix"

// archCalls are those that have another name elsewhere.
var archCalls = []call{{nr: unix.SYS_FSTATAT}, {nr: unix.SYS_ACCEPT}}
