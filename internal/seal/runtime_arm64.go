package seal

import "golang.org/x/sys/unix"

// archCalls are calls that have other names on other architectures.
func archCalls() []Call { return []Call{{Number: unix.SYS_FSTATAT}} }
