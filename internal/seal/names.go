package seal

import "fmt"

// Names returns the names, as in capabilities(7), of the capabilities in a set.
func Names(set uint64) []string {
	names := []string{}
	for n := range 64 {
		if set&(1<<n) != 0 {
			names = append(names, name(n))
		}
	}
	return names
}

// name returns a capability's name from include/uapi/linux/capability.h.
func name(n int) string {
	known := [...]string{
		"CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "LINUX_IMMUTABLE",
		"NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO",
		"SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME",
		"SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG",
		"WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF", "CHECKPOINT_RESTORE",
	}
	if n < len(known) {
		return "CAP_" + known[n]
	}
	return fmt.Sprintf("CAP_%d", n)
}
