package keep

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"cleat/cli/networks"
	"cleat/network/attach"
	"cleat/network/keep"
)

// startNameServer starts the process that serves the names of networks. It has a session of its
// own, so it goes on when the keeper ends. What it prints goes to the keeper's log.
func startNameServer(store *attach.Store) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	log, err := os.OpenFile(keep.LogFile(store), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer log.Close()
	cmd := exec.CommandContext(context.Background(), self, networks.NameServerArgs()...)
	cmd.Dir, cmd.SysProcAttr, cmd.Stderr = "/", &syscall.SysProcAttr{Setsid: true}, log
	cmd.Env = append(os.Environ(), "CLEAT_STATE_DIR="+store.Path(), "NOTIFY_SOCKET=")
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start name server: %w", err)
	}
	go func() { _ = cmd.Wait() }() // so that it leaves no zombie
	return nil
}
