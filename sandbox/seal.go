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
	// AllowKill lets the process send signals, to pass on those it gets.
	AllowKill bool
	// Supervise lets the process look into others of its user, as the seccomp tier
	// takes. Landlock would keep it from that, so there is none then: the process can
	// read what its user can.
	Supervise bool
	// Containers lets it also look into processes of other users and with
	// capabilities, if it may now: CAP_SYS_PTRACE is kept. Containers of root's are
	// such.
	Containers bool
}

// Seal is for a program that does nothing else from now on: it gives up all
// capabilities (but see SealConfig.Containers) and the right to gain any, restricts the
// file system with Landlock where the kernel has it, and limits the whole process (all threads)
// to the system calls that moving bytes takes. It can't be undone. Call it after
// Prepare and before Run. A kernel without seccomp is an error.
//
// A sealed process can't start programs, change files, look into other
// processes, make namespaces or mounts, or open raw, netlink or Unix sockets.
// Descriptors that are open keep working: a log, a capture file, a listener.
// It can't be debugged by other processes of its user, either. A second later it
// gives back the memory that only starting up took.
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
