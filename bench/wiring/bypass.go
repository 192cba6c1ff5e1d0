package wiring

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"

	"cleat/internal/program"
	"cleat/lab"

	"golang.org/x/sys/unix"
)

// bypass4netns runs bypass4netns beside slirp4netns, which it requires. It needs an OCI
// runtime that hands it the container's system calls. So each command inside is an OCI
// container of runc that has the container's network namespace and a mount namespace
// with the same files, and shares everything else. Its sockets are the host's, so they
// reach the host at its own address; the host's loopback is refused.
func bypass4netns(nw *Network) error {
	return nw.rootless(rootlessDriver{hostAddr: hostAddr(1), attach: attachBypass, runner: newOCIRunner})
}

func bypassSocket(nw *Network, c rootlessContainer) string {
	return fmt.Sprintf("%s/bypass%d.sock", nw.dir, c.pair)
}

func attachBypass(nw *Network, c rootlessContainer) error {
	socket := bypassSocket(nw, c)
	args := []string{"env", "XDG_RUNTIME_DIR=" + nw.dir, "bypass4netns", "--ignore=127.0.0.0/8,10.0.0.0/8",
		"--socket", socket, "--com-socket", fmt.Sprintf("%s/bypass-com%d.sock", nw.dir, c.pair),
		"--pid-file", fmt.Sprintf("%s/bypass%d.pid", nw.dir, c.pair), "--log-file", fmt.Sprintf("%s/bypass%d.log", nw.dir, c.pair)}
	if c.inbound {
		p := strconv.Itoa(int(c.port()))
		args = append(args, "-p", p+":"+p)
	}
	if err := nw.start(c.host, lab.Command{Args: args}); err != nil {
		return err
	}
	if err := nw.awaitFile(socket); err != nil {
		return fmt.Errorf("wait for bypass4netns: %w", err)
	}
	c.inbound = false // bypass4netns publishes the port itself
	return attachSlirp(nw, c)
}

// ociRunner runs each command in an OCI container of its own.
type ociRunner struct {
	host    *lab.Node // runc runs there: the container shares its namespaces
	dir     string    // runc's state and the bundles
	netns   string
	socket  string // runc sends the seccomp listener there
	started atomic.Int32
}

func newOCIRunner(nw *Network, c rootlessContainer) lab.Runner {
	return &ociRunner{host: c.host, dir: fmt.Sprintf("%s/runc%d", nw.dir, c.pair), netns: c.netns, socket: bypassSocket(nw, c)}
}

// Start runs c by runc, in the foreground.
func (r *ociRunner) Start(c lab.Command) (lab.Proc, error) {
	id := fmt.Sprintf("c%d", r.started.Add(1))
	bundle := filepath.Join(r.dir, "bundle-"+id)
	root := filepath.Join(bundle, "root")
	if c.Args[0] == lab.Self { // in runc that is runc
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
		c.Args = append([]string{self}, c.Args[1:]...)
	}
	config, err := json.Marshal(r.spec(root, c.Args))
	if err == nil {
		err = os.MkdirAll(root, 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(bundle, "config.json"), config, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("write a bundle for runc: %w", err)
	}
	pidFile := filepath.Join(bundle, "pid")
	// The root directory can't itself become the container's root: runc gets it at
	// another path, in a mount namespace that ends with it.
	c.Args = []string{"unshare", "--mount", "sh", "-c", `mount --rbind / "$1" && shift && exec "$@"`, "sh", root,
		"runc", "--root", r.dir, "--log", filepath.Join(bundle, "log"), "run", "--bundle", bundle, "--pid-file", pidFile, id}
	p, err := r.host.Start(c)
	if err != nil {
		return nil, err
	}
	return &ociProc{Proc: p, dir: r.dir, id: id, pidFile: pidFile}, nil
}

// spec returns the OCI runtime configuration of a command.
func (r *ociRunner) spec(root string, args []string) any {
	type object = map[string]any
	// It permits to choose the congestion control, as on other nodes.
	caps := []string{"CAP_NET_ADMIN"}
	return object{
		"ociVersion": "1.0.2",
		"process": object{"args": args, "env": os.Environ(), "cwd": "/", "user": object{},
			"capabilities": object{"bounding": caps, "effective": caps, "permitted": caps}},
		"root": object{"path": root},
		// An existing /dev keeps runc from making one.
		"mounts": []object{{"destination": "/dev", "type": "bind", "source": "/dev", "options": []string{"rbind"}}},
		"linux": object{
			"namespaces": []object{{"type": "network", "path": r.netns}, {"type": "mount"}},
			"seccomp": object{"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": r.socket, "syscalls": []object{{
				// bypass4netns answers these (its pkg/oci).
				"names":  []string{"bind", "close", "connect", "setsockopt", "fcntl", "_exit", "exit_group", "getpeername"},
				"action": "SCMP_ACT_NOTIFY",
			}}},
		},
	}
}

// ociProc is a runc, which would leave its command behind if it were killed.
type ociProc struct {
	lab.Proc
	dir, id string
	pidFile string // has the command's process id once it runs
}

// Kill ends the command, after which runc ends.
func (p *ociProc) Kill() {
	text, err := os.ReadFile(p.pidFile)
	pid, numberErr := strconv.Atoi(string(text))
	if err != nil || numberErr != nil || unix.Kill(pid, unix.SIGKILL) != nil {
		p.Proc.Kill() // the command does not run yet, or any more
	}
}

// Wait also removes runc's state of a command that was killed.
func (p *ociProc) Wait() error {
	err := p.Proc.Wait()
	deleteErr := program.Command("runc", "--root", p.dir, "delete", "--force", p.id).Run()
	return errors.Join(err, deleteErr)
}
