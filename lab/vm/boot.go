package vm

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"cleat/internal/program"
)

// ErrGuestDied says that the guest ended without saying how its program did: a
// kernel panic, a power-off, or an end before its time.
var ErrGuestDied = errors.New("guest died")

const (
	// defaultMemory is enough for the root file system, twice (archive and
	// unpacked), and Open vSwitch.
	defaultMemory = 1024 // MiB

	// lastLine begins the last line that a guest prints, after a line feed of its
	// own; its status follows.
	lastLine = "cleat-guest: exit status "

	// processor is all that QEMU can emulate but fast string instructions, which
	// are slow here: without them a guest takes a fifth less processor time.
	processor = "max,erms=off,fsrm=off"

	// maxOutput bounds what is kept of a guest's output, in bytes. The rest of a
	// program gone wild is read and dropped.
	maxOutput = 64 << 20

	// maxLog bounds what is quoted of the kernel's log in an error, in bytes.
	maxLog = 4000
)

// kernelArgs allow x32, and save the guest time or trouble: no mitigations, randomisation,
// self tests, security modules or fifth level of page tables, no calibration of clocks that an emulated
// machine can't give reliably, and a reboot (which ends QEMU) on a panic.
const kernelArgs = "console=ttyS0 mitigations=off nokaslr no_timer_check tsc=reliable lpj=10000000 " +
	"syscall.x32=y cryptomgr.notests selinux=0 apparmor=0 audit=0 random.trust_cpu=on panic=-1 no5lvl quiet"

// guestModules are there for other modules, which ask for them by an algorithm's
// name that no index connects with theirs.
var guestModules = []string{"crc32c*", "crypto_null", "gcm", "ccm", "ctr", "cbc", "ghash*", "aes*", "sha256*", "hmac", "authenc", "rng"}

// Config says what to boot and what to run.
// Names of modules that the kernel has built in or left out are skipped.
type Config struct {
	Kernel   Kernel
	Userland string   // from FetchUserland
	Files    []File   // added to the guest's root file system
	Modules  []string // names or patterns (path.Match) of modules that are there when the kernel asks for them
	Load     []string // modules loaded before the command, in this order, which need not be in Modules
	Command  []string // run as root, with the first word a path in the guest
	Env      []string // NAME=value, for the command
	Memory   int      // MiB; 0 means 1024
	Cards    int      // network cards (virtio-net), all on one wire that leads nowhere else

	// Console gets the kernel's log and Output what the command prints, as it
	// comes. Where nil, only Result has it.
	Console, Output io.Writer
}

// Result is what came of a guest.
type Result struct {
	Status  int           // the command's exit status, 0…127 (anything above is 127)
	Output  []byte        // what the command printed, at most 64 MiB
	Console []byte        // the kernel's log
	Elapsed time.Duration // from the start of QEMU to its end
}

// Boot runs a command in a guest and waits for its end. A command that fails is
// no error, but a Status. When ctx ends, QEMU is killed and the error is
// ctx.Err(); like ErrGuestDied it comes with what the guest had printed so far.
// Boot is safe for concurrent use.
func Boot(ctx context.Context, cfg Config) (Result, error) {
	if len(cfg.Command) == 0 {
		return Result{}, errors.New("boot guest: no command given")
	}
	initrd, err := unnamedFile("cleat-initramfs-")
	if err != nil {
		return Result{}, fmt.Errorf("boot guest: %w", err)
	}
	defer initrd.Close()
	if err := initramfs(initrd, cfg); err != nil {
		return Result{}, fmt.Errorf("make root file system of guest: %w", err)
	}
	q := qemu{ctx: ctx, cfg: cfg, initrd: initrd}
	start := time.Now()
	code, err := q.run()
	res := Result{Output: q.output.buf.Bytes(), Console: q.console.buf.Bytes(), Elapsed: time.Since(start)}
	if err != nil {
		return res, fmt.Errorf("boot kernel %s: %w", cfg.Kernel.Release, err)
	}
	res.Output, res.Status, err = verdict(res.Output, code)
	if err != nil {
		return res, fmt.Errorf("boot kernel %s: %w; its last words: %s", cfg.Kernel.Release, err, tail(res.Console, maxLog))
	}
	return res, nil
}

// unnamedFile is a temporary file that is gone when it is closed.
func unnamedFile(prefix string) (*os.File, error) {
	f, err := os.CreateTemp("", prefix)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// verdict compares QEMU's exit code (isa-debug-exit: status·2+1) with the
// guest's last line, and returns the output without what the guest added.
func verdict(output []byte, code int) ([]byte, int, error) {
	rest, last, ok := cutLast(bytes.TrimRight(output, "\n"))
	word, said := strings.CutPrefix(last, lastLine)
	if !ok || !said {
		return output, 0, fmt.Errorf("%w: QEMU ended with %d and the guest without its last line", ErrGuestDied, code)
	}
	status, err := strconv.Atoi(word)
	if err != nil || code != status*2+1 {
		return output, 0, fmt.Errorf("%w: QEMU ended with %d, the guest with %q", ErrGuestDied, code, last)
	}
	return rest, status, nil
}

// cutLast cuts b around its last line feed.
func cutLast(b []byte) (before []byte, after string, ok bool) {
	i := bytes.LastIndexByte(b, '\n')
	if i < 0 {
		return nil, string(b), false
	}
	return b[:i], string(b[i+1:]), true
}

// qemu is one run of QEMU.
type qemu struct {
	ctx             context.Context
	cfg             Config
	initrd          *os.File
	console, output bounded
}

// bounded keeps the first maxOutput bytes written and passes everything on.
type bounded struct {
	buf  bytes.Buffer // not embedded: io.Copy would use its ReadFrom
	next io.Writer
}

func (b *bounded) Write(p []byte) (int, error) {
	if room := maxOutput - b.buf.Len(); room > 0 {
		b.buf.Write(p[:min(room, len(p))])
	}
	if b.next != nil {
		b.next.Write(p) // a reader who is gone must not stall the guest
	}
	return len(p), nil
}

// run starts QEMU, reads both its serial ports until it ends, and returns its
// exit code.
func (q *qemu) run() (int, error) {
	q.console.next, q.output.next = q.cfg.Console, q.cfg.Output
	consoleR, consoleW, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer consoleR.Close()
	outputR, outputW, err := os.Pipe()
	if err != nil {
		consoleW.Close()
		return 0, err
	}
	defer outputR.Close()

	var diag bytes.Buffer
	cmd := program.CommandContext(q.ctx, "qemu-system-x86_64", q.args()...)
	cmd.Stdout, cmd.Stderr = &diag, &diag
	cmd.ExtraFiles = []*os.File{consoleW, outputW, q.initrd} // 3, 4 and 5
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}

	var readers sync.WaitGroup
	started := make(chan error)
	ended := make(chan error, 1)
	go func() {
		// The signal comes when the thread that forked dies, not the process:
		// this one has to live until QEMU has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		consoleW.Close()
		outputW.Close()
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return 0, fmt.Errorf("start QEMU: %w", err)
	}
	readers.Go(func() { io.Copy(&q.console, consoleR) })
	readers.Go(func() { io.Copy(&q.output, outputR) })
	err = <-ended
	readers.Wait()
	if q.ctx.Err() != nil {
		return 0, q.ctx.Err()
	}
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() < 0) {
		return 0, fmt.Errorf("run QEMU: %w: %s", err, tail(diag.Bytes(), maxLog))
	}
	code := cmd.ProcessState.ExitCode()
	if code == 1 && diag.Len() > 0 && q.output.buf.Len() == 0 {
		return 0, fmt.Errorf("run QEMU: %s", tail(diag.Bytes(), maxLog))
	}
	return code, nil
}

// args is QEMU's command line. Its serial ports write to, and the root file
// system is read from, the descriptors that run hands down.
func (q *qemu) args() []string {
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-M", "pc", "-accel", "tcg,thread=single", "-cpu", processor,
		"-m", strconv.Itoa(cmp.Or(q.cfg.Memory, defaultMemory)),
		"-kernel", q.cfg.Kernel.Image, "-initrd", "/dev/fd/5", "-append", kernelArgs,
		"-chardev", "file,id=console,path=/dev/fd/3", "-serial", "chardev:console",
		"-chardev", "file,id=output,path=/dev/fd/4", "-serial", "chardev:output",
		"-device", "isa-debug-exit,iobase=0x501,iosize=1",
	}
	for i := range q.cfg.Cards {
		// Without a file for its ROM a card can't be booted from, and needs none.
		args = append(args, "-netdev", fmt.Sprintf("hubport,id=card%d,hubid=0", i), "-device", fmt.Sprintf("virtio-net-pci,netdev=card%d,romfile=", i))
	}
	return args
}
