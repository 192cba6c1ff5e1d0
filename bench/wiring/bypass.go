package wiring

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"

	"cleat/internal/program"
	"cleat/lab"

	"golang.org/x/sys/unix"
)

// bypass4netns runs bypass4netns beside slirp4netns, as it wants. It needs an
// OCI runtime that hands it the container's system calls: each command inside is
// an OCI container of runc's that has the container's network namespace, a mount
// namespace that shows the same files, and shares everything else. Sockets are the host's, so that the host is reached by
// its own address; its loopback is refused.
func bypass4netns(nw *Network) error {
	return nw.userMode(helper{loopback: hostAddr(1), attach: attachBypass, runner: newOCIRunner})
}

func bypassSocket(nw *Network, r rootless) string {
	return fmt.Sprintf("%s/bypass%d.sock", nw.dir, r.pair)
}

func attachBypass(nw *Network, r rootless) error {
	socket := bypassSocket(nw, r)
	args := []string{"env", "XDG_RUNTIME_DIR=" + nw.dir, "bypass4netns", "--ignore=127.0.0.0/8,10.0.0.0/8",
		"--socket", socket, "--com-socket", fmt.Sprintf("%s/bypass-com%d.sock", nw.dir, r.pair),
		"--pid-file", fmt.Sprintf("%s/bypass%d.pid", nw.dir, r.pair), "--log-file", fmt.Sprintf("%s/bypass%d.log", nw.dir, r.pair)}
	if r.inbound {
		p := strconv.Itoa(int(r.port()))
		args = append(args, "-p", p+":"+p)
	}
	if err := nw.start(r.host, lab.Command{Args: args}); err != nil {
		return err
	}
	if err := poll(nw.ctx, func() error { _, err := os.Stat(socket); return err }); err != nil {
		return fmt.Errorf("wait for bypass4netns: %w", err)
	}
	r.inbound = false // bypass4netns publishes the port itself
	return attachSlirp(nw, r)
}

// bypassed are the system calls that bypass4netns answers (its pkg/oci).
var bypassed = []string{"bind", "close", "connect", "setsockopt", "fcntl", "_exit", "exit_group", "getpeername"}

// ociRunner runs each command as an OCI container.
type ociRunner struct {
	node    *lab.Node // where runc itself runs: the namespace it hands on
	root    string    // runc's state, and the bundles
	netns   string
	socket  string // where runc sends the descriptor of the system calls
	started atomic.Int32
}

func newOCIRunner(nw *Network, r rootless) lab.Runner {
	return &ociRunner{node: r.host, root: fmt.Sprintf("%s/runc%d", nw.dir, r.pair), netns: r.netns, socket: bypassSocket(nw, r)}
}

// Start runs c by runc, in the foreground.
func (o *ociRunner) Start(c lab.Command) (lab.Proc, error) {
	id := fmt.Sprintf("c%d", o.started.Add(1))
	bundle := filepath.Join(o.root, "bundle-"+id)
	files := filepath.Join(bundle, "root")
	if err := os.MkdirAll(files, 0o700); err != nil {
		return nil, fmt.Errorf("make a bundle for runc: %w", err)
	}
	if c.Args[0] == lab.Self {
		self, err := os.Executable() // runc is another program
		if err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
		c.Args = append([]string{self}, c.Args[1:]...)
	}
	config, err := json.Marshal(o.spec(files, c.Args))
	if err != nil {
		return nil, fmt.Errorf("write a bundle for runc: %w", err)
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), config, 0o600); err != nil {
		return nil, fmt.Errorf("write a bundle for runc: %w", err)
	}
	pid := filepath.Join(bundle, "pid")
	// The root directory can't itself become the root: runc gets it by another
	// name, in a mount namespace that goes with it.
	c.Args = []string{"unshare", "--mount", "sh", "-c", `mount --rbind / "$1" && shift && exec "$@"`, "sh", files,
		"runc", "--root", o.root, "--log", filepath.Join(bundle, "log"), "run", "--bundle", bundle, "--pid-file", pid, id}
	p, err := o.node.Start(c)
	if err != nil {
		return nil, err
	}
	return &ociProc{Proc: p, root: o.root, id: id, pidFile: pid}, nil
}

// ociSpec is what of an OCI runtime configuration is needed here, by the names
// of its specification.
type ociSpec struct {
	Version string     `json:"ociVersion"`
	Process ociProcess `json:"process"`
	Root    ociRoot    `json:"root"`
	Mounts  []ociMount `json:"mounts"`
	Linux   ociLinux   `json:"linux"`
}

type ociProcess struct {
	Args []string `json:"args"`
	Env  []string `json:"env"`
	Cwd  string   `json:"cwd"`
	User struct{} `json:"user"`
	Caps ociCaps  `json:"capabilities"`
}

type ociCaps struct {
	Bounding  []string `json:"bounding"`
	Effective []string `json:"effective"`
	Permitted []string `json:"permitted"`
}

type ociRoot struct {
	Path string `json:"path"`
}

type ociMount struct {
	Destination string   `json:"destination"`
	Type        string   `json:"type"`
	Source      string   `json:"source"`
	Options     []string `json:"options"`
}

type ociLinux struct {
	Namespaces []ociNamespace `json:"namespaces"`
	Seccomp    ociSeccomp     `json:"seccomp"`
}

type ociNamespace struct {
	Type string `json:"type"`
	Path string `json:"path,omitempty"`
}

type ociSeccomp struct {
	Default  string       `json:"defaultAction"`
	Listener string       `json:"listenerPath"`
	Syscalls []ociSyscall `json:"syscalls"`
}

type ociSyscall struct {
	Names  []string `json:"names"`
	Action string   `json:"action"`
}

func (o *ociRunner) spec(files string, args []string) ociSpec {
	caps := []string{"CAP_NET_ADMIN"} // to choose the congestion control, as on other nodes
	return ociSpec{
		Version: "1.0.2",
		Process: ociProcess{Args: args, Env: os.Environ(), Cwd: "/", Caps: ociCaps{caps, caps, caps}},
		Root:    ociRoot{Path: files},
		// A /dev that is there keeps runc from making one.
		Mounts: []ociMount{{Destination: "/dev", Type: "bind", Source: "/dev", Options: []string{"rbind"}}},
		Linux: ociLinux{
			Namespaces: []ociNamespace{{Type: "network", Path: o.netns}, {Type: "mount"}},
			Seccomp: ociSeccomp{Default: "SCMP_ACT_ALLOW", Listener: o.socket,
				Syscalls: []ociSyscall{{Names: slices.Clone(bypassed), Action: "SCMP_ACT_NOTIFY"}}},
		},
	}
}

// ociProc is a command that runc runs: ending runc would leave it behind.
type ociProc struct {
	lab.Proc
	root, id string
	pidFile  string // has the command's process id once it runs
}

// Kill ends the command, and with it runc.
func (p *ociProc) Kill() {
	text, err := os.ReadFile(p.pidFile)
	pid, numberErr := strconv.Atoi(string(text))
	if err != nil || numberErr != nil || unix.Kill(pid, unix.SIGKILL) != nil {
		p.Proc.Kill() // it has not come so far, or is gone
	}
}

// Wait also removes what runc keeps of a command that was killed.
func (p *ociProc) Wait() error {
	err := p.Proc.Wait()
	gone := program.Command("runc", "--root", p.root, "delete", "--force", p.id).Run()
	return errors.Join(err, gone)
}
