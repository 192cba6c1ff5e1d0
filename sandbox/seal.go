package sandbox

import (
	"fmt"
	"runtime/debug"
	"time"

	"cleat/internal/seal"
	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// SealConfig lists what a sealed process needs besides moving packets.
type SealConfig struct {
	// ReadPaths are files and directories that may still be opened for reading. Paths that do
	// not exist are left out. /etc/resolv.conf can always be read, in any of the directories
	// that its symbolic links lead through, since it is usually replaced, not rewritten.
	ReadPaths []string
	// SignalPID is the process id of a command that the process may signal; 0: none. On
	// kernels with pidfds (Linux 5.3) it may also signal the processes whose pidfds it holds.
	SignalPID int
	// Supervise lets the process inspect other processes of its user, as the seccomp tier
	// requires: read their memory, take their descriptors, and signal them. Landlock would
	// forbid that, so it is not used, and the process can read every file that its user can.
	Supervise bool
	// Containers extends Supervise to processes of other users and to those with
	// capabilities, such as containers of root: the process keeps CAP_SYS_PTRACE if it has it.
	Containers bool
}

// Seal restricts a process that only moves packets from now on. It drops all capabilities (but
// see SealConfig.Containers) and the right to gain any, restricts file access with Landlock
// where the kernel has it, and limits all threads to the system calls that moving packets
// requires. It can't be undone. Call it between Prepare and Run. A kernel without seccomp is
// an error.
//
// A sealed process can't start programs, change files, inspect or signal other processes,
// create namespaces or mounts, or open sockets other than TCP, UDP and ping sockets and pairs
// of Unix stream sockets. Open descriptors keep working: a log, a capture file, a listener.
// Other processes of its user can't debug it. One second later it returns to the kernel the
// memory that only starting up needed.
func Seal(cfg SealConfig) error {
	pages, err := sys.FindProgramPages() // a sealed process can't read /proc/self/maps
	if err != nil {
		return fmt.Errorf("seal process: %w", err)
	}
	var keep uint64
	if cfg.Containers {
		keep = 1 << unix.CAP_SYS_PTRACE
	}
	_, err = seal.Process(seal.Config{
		Calls: sealedCalls(cfg), Capabilities: keep,
		Read: append(seal.DirsOf(resolvConf), cfg.ReadPaths...), AllFiles: cfg.Supervise,
	})
	if err != nil {
		return fmt.Errorf("seal process: %w", err)
	}
	time.AfterFunc(time.Second, func() { // by then the pages that starting up needs have been used
		debug.FreeOSMemory()
		_ = pages.Release() // releases about 10 of 14 MB
	})
	return nil
}
