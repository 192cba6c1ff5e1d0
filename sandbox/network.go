package sandbox

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"

	"cleat/usernet"
)

// Network is a network for one namespace. Make it with New, give it a namespace
// by exactly one of Wrap, Attach and Join, then call Run. Its methods are safe
// for concurrent use.
type Network struct {
	cfg   Config
	stack *usernet.Stack
}

var errNotYet = errors.New("not there yet")

// New checks the configuration. It starts nothing; the error is a *ConfigError.
func New(cfg Config) (*Network, error) { return &Network{cfg: cfg}, nil }

// Config is what New was given, with defaults filled in.
func (n *Network) Config() Config { return n.cfg }

// Wrap changes cmd, which has not been started, so that it runs with the
// network: in new user, network and mount namespaces, as any program. Main must
// call Init first thing, since this program is run again to prepare the
// namespaces. cmd's Path, Env, ExtraFiles and SysProcAttr change; its
// SysProcAttr.Chroot can't be used. Start cmd, then call Run: the command begins
// when its network is there.
func (n *Network) Wrap(cmd *exec.Cmd) error { return errNotYet }

// Attach prepares cmd, which has not been started and whose program calls Open,
// for the network: it appends one file to cmd.ExtraFiles after the caller's own,
// tells the child about it by an environment variable, and adds new user and
// network namespaces with their id mappings to cmd.SysProcAttr unless the
// caller has set some. Start cmd, then call Run.
func (n *Network) Attach(cmd *exec.Cmd) error { return errNotYet }

// Join makes the network one for a namespace that exists. It starts a helper in
// the namespace for the duration of the set-up only, and returns when the device
// is there. Main must call Init first thing. Run ends with the namespace.
func (n *Network) Join(ctx context.Context, ns Namespace) error { return errNotYet }

// Exec is Wrap, cmd.Start, Run and cmd.Wait in one. The network ends with the
// command. The error is that of the network, or else that of cmd.Wait.
func (n *Network) Exec(ctx context.Context, cmd *exec.Cmd) error { return errNotYet }

// Prepare does the first part of Run, which needs rights that Seal takes away:
// it takes the device over from the inside, opens the forwards, and returns when
// all descriptors are open. The command still waits. Run calls it where it was
// not called. An error that the inside met is a *SetupError.
func (n *Network) Prepare(ctx context.Context) error { return errNotYet }

// Run lets the command begin and moves bytes until ctx ends, the command or the
// namespace is gone (both: nil), or the device fails. It may be called once and
// owns all goroutines it starts. What was opened is closed when it returns.
func (n *Network) Run(ctx context.Context) error { return errNotYet }

// Close frees what was opened where Run is never called. Closing twice, or after
// Run, is harmless.
func (n *Network) Close() error { return nil }

// Forward opens a port; the result is the address it listens on. It fails with
// an error that wraps the cause, e.g. EADDRINUSE, and before Prepare.
func (n *Network) Forward(f Forward) (netip.AddrPort, error) { return netip.AddrPort{}, errNotYet }

// Unforward closes the port again; flows that came in by it live on. The error
// wraps ErrNotForwarded where there is no such forward.
func (n *Network) Unforward(f Forward) error { return errNotYet }

// Forwards are the ports that are open, with Listen as it came out (port 0
// resolved), automatic ones too.
func (n *Network) Forwards() []Forward { return nil }

// Flows describes all flows of the moment. It fails when Run is not under way.
func (n *Network) Flows() ([]FlowInfo, error) { return nil, errNotYet }

// Stats are the counters; zero before Run.
func (n *Network) Stats() Stats { return Stats{} }

// Names are those that led the guest to an address lately, the latest first.
func (n *Network) Names(a netip.Addr) []string { return nil }

// Namespace names a network namespace that exists, and the user namespace to
// join first. Exactly one of PID and Path is set.
type Namespace struct {
	PID  int    // of a process in it
	Path string // e.g. /run/user/1000/netns/x or /proc/PID/ns/net
	// UserPath is the user namespace that owns it; "": found by asking the
	// kernel (NS_GET_USERNS). SameUser does not join any.
	UserPath string
	SameUser bool
	// Stay keeps Run going when the path vanishes, or the process ends.
	Stay bool
}
