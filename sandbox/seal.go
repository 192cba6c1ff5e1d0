package sandbox

import (
	"fmt"
	"runtime/debug"
	"time"

	"cleat/internal/seal"
	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// SealConfig says what a sealed process needs besides moving bytes.
type SealConfig struct {
	// ReadPaths are files and directories that may still be opened for reading;
	// so may /etc/resolv.conf and the directories that it is found in, since it
	// is replaced as a rule rather than rewritten. Paths that do not exist are
	// left out.
	ReadPaths []string
	// Signal is the process id of a command that the process may signal; 0: none.
	// Where the kernel has pidfds (Linux 5.3) it may signal those it holds, too.
	SignalPID int
	// Supervise lets the process look into others of its user, as the seccomp tier
	// takes: it may read their memory, and take and signal what they have. Landlock would
	// forbid that, so there is none: the process can read every file that its user can.
	Supervise bool
	// Containers extends Supervise to processes of other users and with capabilities: the
	// process keeps CAP_SYS_PTRACE, if it has it. Containers of root's are such.
	Containers bool
}

// Seal is for a program that does nothing else from now on: it gives up all
// capabilities (but see SealConfig.Containers) and the right to gain any, restricts the
// file system with Landlock where the kernel has it, and limits the whole process (all threads)
// to the system calls that moving bytes takes. It can't be undone. Call it after
// Prepare and before Run. A kernel without seccomp is an error.
//
// A sealed process can't start programs, change files, look into or signal other
// processes, make namespaces or mounts, or open sockets but those of TCP, UDP and ping,
// and pairs of Unix stream sockets. Descriptors that are open keep working: a log, a
// capture file, a listener. Other processes of its user can't debug it. A second later
// it gives back the memory that only starting up took.
func Seal(cfg SealConfig) error {
	pages, err := sys.FindProgramPages() // once sealed, nobody can look
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
	time.AfterFunc(startOver, func() { shrink(pages) })
	return nil
}

// startOver is when the pages that only starting up needs have all been used.
const startOver = time.Second

// shrink gives back what starting up took: about 10 of 14 MB.
func shrink(pages sys.ProgramPages) {
	debug.FreeOSMemory()
	_ = pages.Release() // a failure costs memory and nothing else
}
