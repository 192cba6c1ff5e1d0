package seal

import (
	"errors"
	"fmt"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// Config describes what a process keeps.
type Config struct {
	Calls        []Call // permitted calls: Runtime and the program's own
	Capabilities uint64 // bit n is capability n; capabilities that the process lacks are not added
	// Read lists files and directories that may be opened for reading. Missing ones are
	// ignored.
	Read []string
	// Remove lists files that may be removed, if Calls permits the system call. Landlock
	// grants this for directories only, so other files in the same directories may be
	// removed as well.
	Remove []string
	// AllFiles turns Landlock off: the process may read what its user may.
	AllFiles bool
}

// State describes how a process is sealed.
type State struct {
	Capabilities    uint64 // remaining; bit n is capability n
	NoNewPrivileges bool
	Dumpable        bool
	Seccomp         bool // our filter is installed; there may be others
	LandlockABI     int  // the kernel's version; 0 if file access is not restricted
}

// Process seals the process: all its current and future threads. The error joins the
// steps that failed; the others were taken, and State reports the result. Call it once,
// from one goroutine.
func Process(cfg Config) (State, error) {
	var s State
	capabilities := sys.DropCapabilities(cfg.Capabilities)
	held, err := sys.Capabilities()
	if err == nil && held&^cfg.Capabilities == 0 {
		capabilities = nil // nothing to drop
	}
	s.Capabilities = held
	privileges := sys.SetNoNewPrivileges()
	s.NoNewPrivileges = privileges == nil
	var files error
	if !cfg.AllFiles {
		s.LandlockABI, files = restrictFiles(cfg.Read, cfg.Remove)
	}
	dumps := forbidDumps()
	s.Dumpable = dumps != nil
	calls := restrictCalls(cfg.Calls)
	s.Seccomp = calls == nil
	return s, errors.Join(capabilities, err, privileges, files, dumps, calls)
}

// forbidDumps turns off core files, which would hold other people's data, and keeps other
// processes of the same user from reading this one's memory.
func forbidDumps() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("set not dumpable: %w", err)
	}
	return nil
}

func restrictCalls(calls []Call) error {
	f, err := filter(calls)
	if err != nil {
		return err
	}
	return sys.SetSeccomp(f)
}

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
