package sandbox

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"sync"

	"cleat/dns"
	"cleat/internal/ledger"
	"cleat/internal/nlsock"
	"cleat/policy"
	"cleat/sandbox/supervisor"
	"cleat/usernet"

	"golang.org/x/sys/unix"
)

// Network is a network for one namespace. Make it with New, give it a namespace
// by exactly one of Wrap, Attach and Join, then call Run. Its methods are safe
// for concurrent use.
type Network struct {
	cfg        Config
	need6      bool   // IPv6 was asked for by an address of its own
	resolvConf []byte // for inside; nil: none
	rules      *policy.Policy
	judge      usernet.Policy
	quiet      usernet.Policy // judge without telling Config.Refused
	resolver   *dns.Forwarder // nil: off
	ledger     *ledger.Ledger // for what the guest causes
	noSplice   string         // why the splice tier can't be had
	noSeccomp  string         // and the seccomp tier, where the policy would have it

	mu      sync.Mutex
	state   state
	cmd     *exec.Cmd
	pidfd   int // written by cmd.Start; -1: the kernel gives none
	channel *channel
	theirs  *os.File    // the inside's end, until the child has it
	watch   watch       // of a joined namespace
	served  namespaceID // that one
	opened  opened
}

// state is how far a Network is.
type state int

const (
	stateNew state = iota
	stateBound
	stateReady // Prepare was called
	stateRunning
	stateEnded
)

// opened are descriptors that came from the inside, and what was made on them.
type opened struct {
	queues      []*os.File // of the device
	sockets     map[kind][]int
	stack       *usernet.Stack
	hostSockets *usernet.Sockets
	supervisor  *supervisor.Supervisor // nil: there is none
	supervised  []*os.File
	binder      *binder     // binds sockets for containers
	hostOwner   namespaceID // of containers, as is the next
	hostCookie  uint64
	gate        *usernet.Gate // nil: there is none
	gateFDs     []*os.File
	outward     []*udpRelay
	guestDiag   *nlsock.Socket // sock_diag of the inside; nil: not wanted
	hostDiag    *nlsock.Socket // and of the host
	diags       []int          // descriptors of sock_diag sockets of the host
}

// New checks the configuration. It starts nothing; the error joins a
// *ConfigError for each wrong field.
func New(cfg Config) (*Network, error) {
	need6 := cfg.Addr6.IsValid()
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	n := &Network{cfg: cfg, need6: need6 || cfg.NoIPv4, pidfd: -1}
	if n.ledger, err = cfg.Limits.NewLedger(); err != nil {
		return nil, fmt.Errorf("configure network: %w", err)
	}
	if err := n.newJudge(); err != nil {
		return nil, err
	}
	if !cfg.DNS.Off {
		if n.resolvConf, err = cfg.guestResolvConf(); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// guestResolvConf is the host's, with our resolver in place of the host's.
func (c *Config) guestResolvConf() ([]byte, error) {
	text, err := os.ReadFile(resolvConf)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read the host's resolvers: %w", err)
	}
	conf, err := dns.ParseResolvConf(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("read the host's resolvers from %s: %w", resolvConf, err)
	}
	if c.DNS.Search != nil {
		conf.Search = c.DNS.Search
	}
	return conf.Guest(c.DNS.Listen...), nil
}

// Config is what New was given, with defaults filled in.
func (n *Network) Config() Config { return n.cfg }

// Prepare does the first part of Run, which needs rights that Seal takes away:
// it takes the device over from the inside, opens the forwards, and returns when
// all descriptors are open. The command still waits. Run calls it where it was
// not called. An error that the inside met is a *SetupError; after any error the
// Network is closed, and the command ends by itself.
func (n *Network) Prepare(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.prepare(ctx)
}

func (n *Network) prepare(ctx context.Context) error {
	switch n.state {
	case stateReady:
		return nil
	case stateNew:
		return errors.New("prepare network: it has no namespace: call Wrap, Attach or Join first")
	case stateRunning, stateEnded:
		return errors.New("prepare network: it ran already, or was closed")
	case stateBound:
	}
	err := n.open(ctx)
	if err != nil {
		n.close()
		return err
	}
	n.state = stateReady
	return nil
}

func (n *Network) open(ctx context.Context) error {
	if n.cmd != nil {
		if n.cmd.Process == nil {
			return fmt.Errorf("prepare network: %s was not started", n.cmd.Args[0])
		}
		n.theirs.Close() // so that the end of the child is the end of the socket
		if err := n.watchCommand(); err != nil {
			return err
		}
		if err := n.takeOver(ctx); err != nil {
			return err
		}
	}
	if err := n.connectDiag(); err != nil {
		return err
	}
	if err := n.newStack(); err != nil {
		return err
	}
	if err := n.newSupervisor(); err != nil {
		return err
	}
	for _, f := range n.cfg.Forwards {
		if _, err := n.opened.stack.Forward(f); err != nil {
			return err
		}
	}
	return n.openOutward()
}

// connectDiag makes the sock_diag socket of the inside safe to ask, before the command
// begins.
func (n *Network) connectDiag() (err error) {
	if fds := n.opened.sockets[kindDiag]; len(fds) > 0 {
		n.opened.guestDiag, err = nlsock.New(fds[0])
	}
	return err
}

// watchCommand makes the end of the command the end of Run. The caller's pidfd
// stays the caller's; a kernel without them (before 5.3) leaves it to ctx.
func (n *Network) watchCommand() error {
	fd := *n.cmd.SysProcAttr.PidFD
	if fd < 0 {
		return nil
	}
	if n.cmd.SysProcAttr.PidFD != &n.pidfd {
		var err error
		if fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			return fmt.Errorf("watch command: %w", err)
		}
	}
	n.pidfd = -1
	return n.watch.process(fd)
}

// takeOver receives everything from the inside.
func (n *Network) takeOver(ctx context.Context) error {
	n.opened.sockets = map[kind][]int{}
	const diag, gate, supervised = 1, 5, 5
	got, most := 0, len(n.wantedSockets().kinds())+n.cfg.Queues+diag+gate+supervised
	for {
		r, fds, err := n.channel.receive(ctx)
		if errors.Is(err, io.EOF) {
			return &SetupError{Step: "set up network inside", Err: errors.New("the process ended before")}
		}
		if err != nil {
			return err
		}
		for i, k := range r.Files {
			n.opened.sockets[k] = append(n.opened.sockets[k], fds[i])
		}
		if got += len(fds); got > most {
			return fmt.Errorf("set up network: %d descriptors came from inside, %d were asked for", got, most)
		}
		for _, w := range r.Warnings {
			n.cfg.Log.Warn(w)
		}
		if r.Stage == stageNetwork {
			n.noSeccomp = cmp.Or(n.noSeccomp, r.NoSeccomp)
			if err := n.takeGate(r.NoSplice); err != nil {
				return err
			}
			return n.takeTUN()
		}
	}
}

func (n *Network) takeTUN() error {
	tuns := n.opened.sockets[kindTUN]
	if len(tuns) != n.cfg.Queues {
		return fmt.Errorf("set up network: %d queues came from inside, %d were asked for", len(tuns), n.cfg.Queues)
	}
	for _, fd := range tuns {
		if err := checkTUN(fd); err != nil {
			return fmt.Errorf("set up network: %w", err)
		}
	}
	delete(n.opened.sockets, kindTUN)
	for _, fd := range tuns {
		n.opened.queues = append(n.opened.queues, os.NewFile(uintptr(fd), n.cfg.Interface))
	}
	return nil
}

// takeGate takes over what the splice tier needs, or why there is none.
func (n *Network) takeGate(lack string) error {
	if !n.cfg.splices() {
		return nil
	}
	n.noSplice = lack
	files := map[kind]*os.File{}
	for _, k := range []kind{kindGate4, kindCaller4, kindGate6, kindCaller6} {
		for _, fd := range n.opened.sockets[k] {
			files[k] = os.NewFile(uintptr(fd), string(k))
			n.opened.gateFDs = append(n.opened.gateFDs, files[k])
			if err := checkGate(fd); err != nil {
				return fmt.Errorf("set up network: %w", err)
			}
		}
		delete(n.opened.sockets, k)
	}
	if lack == "" && len(files) > 0 {
		n.opened.gate = &usernet.Gate{Listener4: files[kindGate4], Caller4: files[kindCaller4], Listener6: files[kindGate6], Caller6: files[kindCaller6], Every: n.cfg.Tier == TierSplice}
		return nil
	}
	if n.cfg.Tier == TierSplice {
		return &SetupError{Step: "set up the splice tier", Err: errors.New(cmp.Or(lack, "nothing came from inside")), Remedy: "cleat run --tier auto"}
	}
	return nil
}

func (n *Network) newStack() error {
	c := &n.cfg
	cfg := usernet.Config{
		TUN: n.opened.queues[0], Queues: n.opened.queues[1:], Gate: n.opened.gate, MTU: c.MTU, Guest4: c.Addr4.Addr(), Guest6: c.Addr6.Addr(),
		Gateway4: c.Gateway4, Gateway6: c.Gateway6, Shown: c.shown(), Policy: n.judge, Hook: n.hook(),
		Outbound4: c.Outbound4, Outbound6: c.Outbound6, OutboundInterface: c.OutboundInterface,
		Pcap: c.Pcap, Limits: c.Limits, Ledger: n.ledger,
	}
	var err error
	if n.opened.stack, err = usernet.New(cfg); err != nil {
		return fmt.Errorf("start network: %w", err)
	}
	n.opened.hostSockets = usernet.NewSockets(cfg)
	return nil
}

// Close frees what was opened where Run is never called. A command that waits
// for its network ends. Closing twice, or after Run, is harmless; while Run runs
// it does nothing.
func (n *Network) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.state != stateRunning {
		n.close()
	}
	return nil
}

// close frees everything. The caller holds the lock.
func (n *Network) close() {
	if n.state == stateEnded {
		return
	}
	n.state = stateEnded
	if n.channel != nil {
		n.channel.close()
		n.theirs.Close()
	}
	n.watch.close()
	if n.pidfd >= 0 {
		unix.Close(n.pidfd)
	}
	for _, r := range n.opened.outward {
		r.close()
	}
	if n.opened.stack != nil {
		n.opened.stack.Close()
	}
	if n.opened.supervisor != nil {
		n.opened.supervisor.Close()
	}
	for _, fds := range n.opened.sockets {
		closeAll(fds)
	}
	closeAll(n.opened.diags)
	if l := n.cfg.RuntimeListener; l != nil {
		l.Close()
	}
	for _, f := range slices.Concat(n.opened.queues, n.opened.gateFDs, n.opened.supervised) {
		f.Close()
	}
}

// stack is the data path, once Prepare has made it.
func (n *Network) stack() (*usernet.Stack, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.opened.stack == nil {
		return nil, errors.New("the network is not prepared")
	}
	return n.opened.stack, nil
}

// Forward opens a port; the result is the address it listens on. The error wraps
// the cause, e.g. EADDRINUSE. It works from Prepare on, until Run returns.
func (n *Network) Forward(f Forward) (netip.AddrPort, error) {
	s, err := n.stack()
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("forward port: %w", err)
	}
	return s.Forward(f)
}

// Unforward closes the port again, which is named by Protocol, Interface, and
// Listen as Forward returned it; flows that came in by it live on. The error
// wraps ErrNotForwarded where there is no such forward.
func (n *Network) Unforward(f Forward) error {
	s, err := n.stack()
	if err != nil {
		return fmt.Errorf("close forwarded port: %w", err)
	}
	return s.Unforward(f)
}

// Forwards are the ports that are open, with Listen as it came out (port 0
// resolved), automatic ones too, in no particular order; none before Prepare.
func (n *Network) Forwards() []Forward {
	s, err := n.stack()
	if err != nil {
		return nil
	}
	all, err := s.Forwards()
	if err != nil {
		return nil
	}
	return all
}

// Tier is how TCP connections move, unless their flow says otherwise, and why
// not in a faster way; "" where there is nothing to say. It is known from Prepare
// on.
func (n *Network) Tier() (t Tier, why string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.opened.supervisor != nil {
		return TierSeccomp, ""
	}
	if n.opened.gate != nil {
		return TierSplice, n.noSeccomp
	}
	if n.cfg.Pcap != nil {
		return TierTUN, "a capture sees packets of the device alone"
	}
	return TierTUN, n.noSplice
}

// Flows describes all flows of the moment. It fails before Prepare and after
// Run.
func (n *Network) Flows() ([]FlowInfo, error) {
	s, err := n.stack()
	if err != nil {
		return nil, fmt.Errorf("list flows: %w", err)
	}
	return s.Flows()
}

// Stats are the counters; zero before Prepare, and the last ones after Run.
func (n *Network) Stats() Stats {
	s, err := n.stack()
	if err != nil {
		return Stats{}
	}
	stats := Stats{Stats: s.Stats(), Ledger: n.ledger.Usage()}
	if n.opened.supervisor != nil {
		stats.Supervisor = n.opened.supervisor.Stats()
	}
	return stats
}

// Names are those that led the guest to an address lately, the latest first.
func (n *Network) Names(a netip.Addr) []string { return n.rules.Names(a) }
