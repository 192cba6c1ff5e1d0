package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"cleat/internal/sys"

	"github.com/landlock-lsm/go-landlock/landlock"
	"golang.org/x/net/bpf"
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
	filter, err := sealFilter(cfg)
	if err != nil {
		return fmt.Errorf("seal process: %w", err)
	}
	pages, err := sys.FindProgramPages() // once sealed, nobody can look
	if err != nil {
		return fmt.Errorf("seal process: %w", err)
	}
	var keep uint64
	if cfg.Containers {
		keep = 1 << unix.CAP_SYS_PTRACE
	}
	if err := sys.DropCapabilities(keep); err != nil {
		return fmt.Errorf("seal process: %w", err)
	}
	if !cfg.Supervise {
		if err := restrictFiles(cfg); err != nil {
			return fmt.Errorf("seal process: %w", err)
		}
	}
	// No core files with other people's data, and no ptrace by the same user.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("seal process: set not dumpable: %w", err)
	}
	if err := sys.SetSeccomp(filter); err != nil {
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

// restrictFiles lets nothing of the file system through but reading what is
// needed. Kernels without Landlock, or with an old one, do what they can:
// seccomp forbids opening for writing in any case.
func restrictFiles(cfg SealConfig) error {
	rules := []landlock.Rule{}
	for _, path := range append(resolverPaths(), cfg.ReadPaths...) {
		st, err := os.Stat(path)
		switch {
		case err != nil:
			continue
		case st.IsDir():
			rules = append(rules, landlock.RODirs(path).IgnoreIfMissing())
		default:
			rules = append(rules, landlock.ROFiles(path).IgnoreIfMissing())
		}
	}
	// V5 is files alone. Later versions also know signals and abstract sockets,
	// which seccomp has an opinion about already.
	if err := landlock.V5.BestEffort().RestrictPaths(rules...); err != nil {
		return fmt.Errorf("restrict the file system: %w", err)
	}
	return nil
}

// resolverPaths are the directories on the way from /etc/resolv.conf to what it
// leads to.
func resolverPaths() []string {
	var all []string
	path := resolvConf
	for range 8 { // as many links as anybody has had reason for
		all = append(all, filepath.Dir(path))
		to, err := os.Readlink(path)
		if err != nil {
			return all
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = to
	}
	return all
}

// sealFilter is the seccomp filter. What it does not list fails with EPERM. It
// could as well kill the process; but nothing unlisted is ever done either way,
// and a Go runtime of tomorrow that tries a new system call, or a library that
// asks for something it can do without, should find its fallback and not end
// everybody's connections. Calls of another architecture do kill: nobody honest
// makes them, and their numbers mean something else.
func sealFilter(cfg SealConfig) ([]bpf.RawInstruction, error) {
	if sys.NativeArch == 0 {
		return nil, sys.ErrSeccompArch
	}
	calls := append([]call{}, sealedCalls...)
	calls = append(calls, archCalls...)
	if cfg.Supervise {
		calls = append(calls, superviseCalls...)
	}
	calls = append(calls, ioctls(cfg.Supervise))
	if cfg.AllowKill {
		calls = append(calls, killCalls...)
	} else {
		calls = append(calls, call{nr: unix.SYS_TGKILL, when: []condition{argIs(0, uint32(os.Getpid()))}})
	}
	return assemble(calls)
}

// call is a system call that is let through when all conditions hold.
type call struct {
	nr   uint32
	when []condition
}

// condition compares half an argument under a mask with values. The lower half
// is all of an int, and of a flag word of which no high bit means anything.
type condition struct {
	arg  int
	high bool // the upper half
	mask uint32
	any  []uint32 // one of them
}

func argHighIs(arg int, value uint32) condition {
	return condition{arg: arg, high: true, mask: 0xffffffff, any: []uint32{value}}
}

func argIs(arg int, values ...uint32) condition {
	return condition{arg: arg, mask: 0xffffffff, any: values}
}

// argHas tells that of the bits in mask those of value, and no others, are set.
func argHas(arg int, mask, value uint32) condition {
	return condition{arg: arg, mask: mask, any: []uint32{value}}
}

// argLacks tells that none of the bits is set.
func argLacks(arg int, bits uint32) condition { return argHas(arg, bits, 0) }

// Results of a filter.
var (
	allow = bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}
	deny  = bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)}
	kill  = bpf.RetConstant{Val: unix.SECCOMP_RET_KILL_PROCESS}
	// unknown is what an older kernel says.
	unknown = bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)}
)

// assemble makes one block for each call: its number, its conditions, allow or
// deny. Jumps are short that way, whatever the number of calls.
func assemble(calls []call) ([]bpf.RawInstruction, error) {
	prog := []bpf.Instruction{
		bpf.LoadAbsolute{Off: sys.SeccompArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: sys.NativeArch, SkipTrue: 1},
		kill,
		bpf.LoadAbsolute{Off: sys.SeccompNr, Size: 4},
		// Its flags are behind a pointer. The C library, where there is one, then
		// makes its threads with clone.
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SYS_CLONE3, SkipFalse: 1},
		unknown,
	}
	seen := map[uint32]bool{}
	for _, c := range calls {
		if seen[c.nr] {
			return nil, fmt.Errorf("system call %d is listed twice", c.nr)
		}
		seen[c.nr] = true
		block := c.block()
		if len(block) > 255 {
			return nil, errors.New("too many conditions for one system call")
		}
		prog = append(prog, bpf.JumpIf{Cond: bpf.JumpEqual, Val: c.nr, SkipFalse: uint8(len(block))})
		prog = append(prog, block...)
	}
	return bpf.Assemble(append(prog, deny))
}

// block decides about one call. It starts with the number in the accumulator,
// and always returns.
func (c call) block() []bpf.Instruction {
	var b []bpf.Instruction
	for _, w := range c.when {
		at := sys.SeccompArgs + 8*uint32(w.arg)
		if w.high {
			at += 4
		}
		b = append(b, bpf.LoadAbsolute{Off: at, Size: 4})
		if w.mask != 0xffffffff {
			b = append(b, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: w.mask})
		}
		for i, v := range w.any {
			// Past the other values and the deny, to the next condition.
			b = append(b, bpf.JumpIf{Cond: bpf.JumpEqual, Val: v, SkipTrue: uint8(len(w.any) - i)})
		}
		b = append(b, deny)
	}
	return append(b, allow)
}
