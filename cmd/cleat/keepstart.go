package main

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
	"cleat/network/keep"
)

// startKeeper starts a keeper that outlives who asked for it, if none runs. Where systemd
// is the machine's service manager it is a service of its own: whatever is in the control
// group of the service or session that asked ends with that (systemd.kill(5)), and groups
// beside those that systemd makes are nobody's to make. When such a service ends, however
// it does, systemd removes its group and forgets it. Elsewhere a session of its own will do.
func startKeeper(store *attach.Store) error {
	if err := keep.Starting(store); err != nil {
		if errors.Is(err, keep.ErrRunning) {
			return nil
		}
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	log, err := os.OpenFile(keep.LogFile(store), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("start a keeper: %w", err)
	}
	defer log.Close()
	if systemdSees(store.Dir(), self) {
		err := startService(store, self)
		if err == nil {
			return nil
		}
		fmt.Fprintf(log, "a keeper ends with the service that has it started: %v\n", err)
	}
	return startSession(store, self, log)
}

var keeperArgs = []string{"keep", "--until-idle", "--log"}

// startSession starts one in a session of its own. What it dies of is in its log, too.
func startSession(store *attach.Store, self string, log io.Writer) error {
	cmd := exec.CommandContext(context.Background(), self, keeperArgs...)
	cmd.Dir, cmd.SysProcAttr, cmd.Stderr = "/", &syscall.SysProcAttr{Setsid: true}, log
	cmd.Env = append(os.Environ(), "CLEAT_STATE_DIR="+store.Dir(), "NOTIFY_SOCKET=") // we are nobody's service
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start a keeper: %w", err)
	}
	return cmd.Process.Release()
}

// keeperEnv are what a keeper looks for containers by. Others stay here: anybody may ask
// systemd for the environment of a service.
var keeperEnv = []string{"PATH", "HOME", "XDG_RUNTIME_DIR", "DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT", "CONTAINER_HOST"}

// askWithin is how long systemd is waited for. It answers within some ms.
const askWithin = 5 * time.Second

// startService has systemd start one. It does not wait until that has begun
// (--no-block): services wait for the basic ones, of which the one that asks may be one.
func startService(store *attach.Store, self string) error {
	ctx, cancel := context.WithTimeout(context.Background(), askWithin)
	defer cancel()
	args := []string{"--quiet", "--no-block", "--collect", "--description=Keep containers attached (cleat, started on demand)",
		fmt.Sprintf("--property=SuccessExitStatus=%d %d", exitRunning, exitSignal+int(syscall.SIGTERM)), "--setenv=CLEAT_STATE_DIR=" + store.Dir()}
	for _, name := range keeperEnv {
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
