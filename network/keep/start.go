package keep

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"cleat/internal/program"
	"cleat/network/attach"
	"cleat/network/keep/client"

	"golang.org/x/sys/unix"
)

// Start starts a keeper that outlives the calling process, if none runs. If systemd manages the
// machine, the keeper becomes a service of its own: everything in the control group of the caller's
// service or session ends with that (systemd.kill(5)), and only systemd may create other groups.
// When the service ends, however it ends, systemd removes the group and forgets the service. Without
// systemd the keeper gets a session of its own.
func Start(store *attach.Store) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	return StartProgram(store, self)
}

// StartProgram is Start for a process that is not cleat: cleat is the path of that program.
func StartProgram(store *attach.Store, cleat string) error {
	if runs(store) {
		return nil // usually, and Starting would take 20 ms to be sure
	}
	if err := Starting(store); err != nil {
		if errors.Is(err, ErrRunning) {
			return nil
		}
		return err
	}
	log, err := os.OpenFile(LogFile(store), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("start a keeper: %w", err)
	}
	defer log.Close()
	if SystemdSees(store.Path(), cleat) {
		err := startService(store, cleat)
		if err == nil {
			return nil
		}
		fmt.Fprintf(log, "the keeper will end with the service that started it: %v\n", err)
	}
	return startSession(store, cleat, log)
}

// endsWithin is more than a keeper takes to end, or to serve commands after its start.
const endsWithin = 2 * time.Second

// runs reports whether a keeper runs. If it does not serve commands, it waits until it does or has ended: one
// that was killed has its lock for a moment yet.
func runs(store *attach.Store) bool {
	for deadline := time.Now().Add(endsWithin); ; time.Sleep(5 * time.Millisecond) {
		s := StateOf(store)
		if !s.Running || s.PID == os.Getpid() || time.Now().After(deadline) || !client.Gone(context.Background(), store.Path(client.SocketName)) {
			return s.Running
		}
	}
}

// UnitName is the name of the systemd unit that starts a keeper at boot, and SocketUnitName that of the
// socket at which Docker finds the keeper. Administrators' units are in UnitDir.
const (
	UnitName       = "cleat-keep.service"
	SocketUnitName = "cleat-keep.socket"
	UnitDir        = "/etc/systemd/system/"
)

// ShippedUnits returns where packages and `make install` put a unit, the directory first that systemd
// prefers. A unit in UnitDir hides them (systemd.unit(5)).
func ShippedUnits(name string) []string {
	return []string{"/usr/local/lib/systemd/system/" + name, "/usr/lib/systemd/system/" + name}
}

// AtBoot reports whether systemd starts a keeper at boot. managed is false if systemd does not
// manage this host, as far as this process sees.
func AtBoot(store *attach.Store) (starts, managed bool) {
	self, err := os.Executable()
	if err != nil || !SystemdSees(store.Path(), self) {
		return false, false
	}
	for _, dir := range []string{"/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"} {
		found, _ := filepath.Glob(filepath.Join(dir, "*.wants", UnitName))
		starts = starts || len(found) > 0
	}
	return starts, true
}

// ExitRunning is the exit code of `cleat keep` if another keeper runs.
const ExitRunning = 4

var keeperArgs = []string{"keep", "--until-idle", "--log"}

// startSession starts a keeper in a session of its own. Its log has the output of a crash, too. The keeper
// inherits none of the descriptors that our caller has left open: somebody may wait for the end of a pipe.
func startSession(store *attach.Store, self string, log io.Writer) error {
	const first = 3                                                     // after the standard streams
	_ = unix.CloseRange(first, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC) // Linux 5.11
	cmd := exec.CommandContext(context.Background(), self, keeperArgs...)
	cmd.Dir, cmd.SysProcAttr, cmd.Stderr = "/", &syscall.SysProcAttr{Setsid: true}, log
	cmd.Env = append(os.Environ(), "CLEAT_STATE_DIR="+store.Path(), "NOTIFY_SOCKET=") // it is not the caller's service
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start a keeper: %w", err)
	}
	return cmd.Process.Release()
}

// systemdTimeout bounds the wait for systemd, which answers within some milliseconds.
const systemdTimeout = 5 * time.Second

// startService starts a keeper by systemd. It does not wait for the start (--no-block): services wait
// for the basic ones, and the caller may be one of these.
func startService(store *attach.Store, self string) error {
	ctx, cancel := context.WithTimeout(context.Background(), systemdTimeout)
	defer cancel()
	args := []string{"--quiet", "--no-block", "--collect", "--description=Keep containers attached (cleat, started on demand)",
		fmt.Sprintf("--property=SuccessExitStatus=%d %d", ExitRunning, 128+int(syscall.SIGTERM)), "--setenv=CLEAT_STATE_DIR=" + store.Path()}
	for _, name := range client.SearchEnv { // no others: everybody can read the environment of a service
		if value, set := os.LookupEnv(name); set {
			args = append(args, "--setenv="+name+"="+value)
		}
	}
	cmd := program.CommandContext(ctx, "systemd-run", append(append(args, "--", self), keeperArgs...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("systemd-run: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// SystemdSees reports whether systemd is process 1, is in our network namespace, and sees the same
// files as we do: a service may see others.
func SystemdSees(files ...string) bool {
	name, err := os.ReadFile("/proc/1/comm")
	if err != nil || strings.TrimSpace(string(name)) != "systemd" || !sameFile("/proc/self/ns/net", "/proc/1/ns/net") {
		return false
	}
	for _, path := range append(files, "/run/systemd/system") { // sd_booted(3)
		if !sameFile(path, "/proc/1/root"+path) {
			return false
		}
	}
	return true
}

func sameFile(a, b string) bool {
	one, err := os.Stat(a)
	if err != nil {
		return false
	}
	other, err := os.Stat(b)
	return err == nil && os.SameFile(one, other)
}
