package keep

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"cleat/internal/program"
	"cleat/network/attach"
)

// Start starts a keeper that outlives who asked for it, if none runs. Where systemd
// is the machine's service manager it is a service of its own: whatever is in the control
// group of the service or session that asked ends with that (systemd.kill(5)), and groups
// beside those that systemd makes are nobody's to make. When such a service ends, however
// it does, systemd removes its group and forgets it. Elsewhere a session of its own will do.
func Start(store *attach.Store) error {
	if err := Starting(store); err != nil {
		if errors.Is(err, ErrRunning) {
			return nil
		}
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	log, err := os.OpenFile(LogFile(store), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("start a keeper: %w", err)
	}
	defer log.Close()
	if systemdSees(store.Path(), self) {
		err := startService(store, self)
		if err == nil {
			return nil
		}
		fmt.Fprintf(log, "a keeper ends with the service that has it started: %v\n", err)
	}
	return startSession(store, self, log)
}

// ExitRunning is the exit code of `cleat keep` where another keeper runs.
const ExitRunning = 4

var keeperArgs = []string{"keep", "--until-idle", "--log"}

// startSession starts one in a session of its own. What it dies of is in its log, too.
func startSession(store *attach.Store, self string, log io.Writer) error {
	cmd := exec.CommandContext(context.Background(), self, keeperArgs...)
	cmd.Dir, cmd.SysProcAttr, cmd.Stderr = "/", &syscall.SysProcAttr{Setsid: true}, log
	cmd.Env = append(os.Environ(), "CLEAT_STATE_DIR="+store.Path(), "NOTIFY_SOCKET=") // we are nobody's service
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start a keeper: %w", err)
	}
	return cmd.Process.Release()
}

// systemdTimeout is how long systemd is waited for. It answers within some ms.
const systemdTimeout = 5 * time.Second

// startService has systemd start one. It does not wait until that has begun
// (--no-block): services wait for the basic ones, of which the one that asks may be one.
func startService(store *attach.Store, self string) error {
	ctx, cancel := context.WithTimeout(context.Background(), systemdTimeout)
	defer cancel()
	args := []string{"--quiet", "--no-block", "--collect", "--description=Keep containers attached (cleat, started on demand)",
		fmt.Sprintf("--property=SuccessExitStatus=%d %d", ExitRunning, 128+int(syscall.SIGTERM)), "--setenv=CLEAT_STATE_DIR=" + store.Path()}
	for _, name := range searchEnv { // no others: anybody may ask systemd for a service's environment
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

// systemdSees tells whether systemd is the first process, in our network namespace, and
// has the same files as we have: services may have others.
func systemdSees(files ...string) bool {
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
