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

// ErrGuestDied: the guest ended without reporting its program's exit status, by a kernel
// panic, a power-off or an early exit.
var ErrGuestDied = errors.New("guest died")

const (
	// defaultMemory holds the root file system twice (archive and unpacked) and Open
	// vSwitch.
	defaultMemory = 1024 // MiB

	// statusLine begins the last line of a guest's output, after an extra line feed. The
	// exit status follows.
	statusLine = "cleat-guest: exit status "

	// cpuModel is everything that QEMU can emulate, without fast string instructions.
	// They are slow under emulation: without them a guest needs a fifth less processor
	// time.
	cpuModel = "max,erms=off,fsrm=off"

	// maxOutput bounds the part of a guest's output that is kept, in bytes. The rest is
	// read and dropped.
	maxOutput = 64 << 20

	// maxLog bounds the part of the kernel's log in an error, in bytes.
	maxLog = 4000
)

// kernelArgs permit x32 and save the guest time: no mitigations, randomisation, self
// tests, security modules or fifth level of page tables, and no calibration of clocks,
// which an emulated machine can't provide reliably. A panic reboots, which ends QEMU.
const kernelArgs = "console=ttyS0 mitigations=off nokaslr no_timer_check tsc=reliable lpj=10000000 " +
	"syscall.x32=y cryptomgr.notests selinux=0 apparmor=0 audit=0 random.trust_cpu=on panic=-1 no5lvl quiet"

// guestModules are requested by other modules, by the name of an algorithm that no index
// maps to the module.
var guestModules = []string{"crc32c*", "crypto_null", "gcm", "ccm", "ctr", "cbc", "ghash*", "aes*", "sha256*", "hmac", "authenc", "rng"}

// Config configures a guest. Modules that the kernel has built in, or does not have, are
// skipped.
type Config struct {
	Kernel   Kernel
	Userland string   // from FetchUserland
	Files    []File   // added to the guest's root file system
	Modules  []string // names or patterns (path.Match) of modules that the kernel can load on request
	Load     []string // modules loaded before the command, in this order; they need not be in Modules
	Command  []string // run as root; the first word is a path in the guest
	Env      []string // NAME=value, for the command
	Memory   int      // MiB; 0: 1024
	Cards    int      // network cards (virtio-net), all on one wire that leads nowhere else

	// Console gets the kernel's log, and Output the command's output, as they come.
	// Result has both in any case.
	Console, Output io.Writer
}

// Result is the result of a guest.
type Result struct {
	Status  int           // the command's exit status, 0…127 (anything above is 127)
	Output  []byte        // at most 64 MiB
	Console []byte        // the kernel's log
	Elapsed time.Duration // from the start of QEMU to its end
}

// Boot runs a command in a guest and waits for its end. A command that fails is no error,
// but a Status. When ctx ends, QEMU is killed and the error is ctx.Err(). With that error
// and with ErrGuestDied, Result has the output so far. Boot is safe for concurrent use.
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
		return Result{}, fmt.Errorf("make root file system: %w", err)
	}
	q := qemu{ctx: ctx, cfg: cfg, initrd: initrd}
	start := time.Now()
	code, err := q.run()
	res := Result{Output: q.output.buf.Bytes(), Console: q.console.buf.Bytes(), Elapsed: time.Since(start)}
	if err != nil {
		return res, fmt.Errorf("boot kernel %s: %w", cfg.Kernel.Release, err)
	}
	res.Output, res.Status, err = checkExit(res.Output, code)
	if err != nil {
		return res, fmt.Errorf("boot kernel %s: %w; its log ends with: %s", cfg.Kernel.Release, err, tail(res.Console, maxLog))
	}
	return res, nil
}

// unnamedFile makes a temporary file that vanishes when it is closed.
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

// checkExit compares QEMU's exit code (isa-debug-exit: status·2+1) with the guest's last
// line. It returns the output without that line, and the status.
func checkExit(output []byte, code int) ([]byte, int, error) {
	text := bytes.TrimRight(output, "\n")
	i := bytes.LastIndexByte(text, '\n')
	last := string(text[i+1:])
	word, ok := strings.CutPrefix(last, statusLine)
	if i < 0 || !ok {
		return output, 0, fmt.Errorf("%w: QEMU ended with %d, but the guest printed no exit status", ErrGuestDied, code)
	}
	status, err := strconv.Atoi(word)
	if err != nil || code != status*2+1 {
		return output, 0, fmt.Errorf("%w: QEMU ended with %d, but the guest printed %q", ErrGuestDied, code, last)
	}
	return text[:i], status, nil
}

// qemu is one run of QEMU.
type qemu struct {
	ctx             context.Context
	cfg             Config
	initrd          *os.File
	console, output boundedWriter
}

// boundedWriter keeps the first maxOutput bytes and passes everything on.
type boundedWriter struct {
	buf  bytes.Buffer // not embedded: io.Copy would use its ReadFrom
	next io.Writer
}

func (b *boundedWriter) Write(p []byte) (int, error) {
	if room := maxOutput - b.buf.Len(); room > 0 {
		b.buf.Write(p[:min(room, len(p))])
	}
	if b.next != nil {
		b.next.Write(p) // an error of the reader must not stall the guest
	}
	return len(p), nil
}

// run starts QEMU, reads both serial ports until it ends, and returns its exit code.
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
		// Pdeathsig follows the thread that forked, not the process, so this thread must
		// live until QEMU has ended.
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

// args returns QEMU's command line. The serial ports and the root file system are the
// descriptors that run passes to QEMU.
func (q *qemu) args() []string {
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-M", "pc", "-accel", "tcg,thread=single", "-cpu", cpuModel,
		"-m", strconv.Itoa(cmp.Or(q.cfg.Memory, defaultMemory)),
		"-kernel", q.cfg.Kernel.Image, "-initrd", "/dev/fd/5", "-append", kernelArgs,
		"-chardev", "file,id=console,path=/dev/fd/3", "-serial", "chardev:console",
		"-chardev", "file,id=output,path=/dev/fd/4", "-serial", "chardev:output",
		"-device", "isa-debug-exit,iobase=0x501,iosize=1",
	}
	for i := range q.cfg.Cards {
		// A card without ROM needs no ROM file and can't be booted from.
		args = append(args, "-netdev", fmt.Sprintf("hubport,id=card%d,hubid=0", i), "-device", fmt.Sprintf("virtio-net-pci,netdev=card%d,romfile=", i))
	}
	return args
}
