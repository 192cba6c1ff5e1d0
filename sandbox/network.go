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
	"sync"

	"cleat/dns"
	"cleat/internal/ledger"
	"cleat/internal/nlsock"
	"cleat/policy"
	"cleat/sandbox/supervisor"
	"cleat/usernet"
	"cleat/usernet/lan"

	"golang.org/x/sys/unix"
)

// Network is a network for one namespace. Create it with New, give it a namespace by exactly
// one of Wrap, Attach and Join, then call Run. Its methods are safe for concurrent use.
type Network struct {
	cfg        Config
	need6      bool   // IPv6 was asked for explicitly
	resolvConf []byte // for the command; nil: none
	rules      *policy.Policy
	judge      usernet.Policy // judges flows and reports refusals to Config.OnRefused
	silent     usernet.Policy // judges without reports
	resolver   *dns.Forwarder // nil: DNS is off
	ledger     *ledger.Ledger // charged with what the guest causes
	noSplice   string         // why the splice tier is missing
	noSeccomp  string         // why the seccomp tier is missing, where it is optional

	mu       sync.Mutex
	state    state
	cmd      *exec.Cmd // nil: the namespace was joined
	pidfd    int       // set by cmd.Start; -1: the kernel has none
	channel  *channel
	childEnd *os.File // the setup process's end of channel, until it has been started
	watch    watch
	netns    supervisor.Namespace // that was joined
	res      resources
}

type state int

const (
	stateNew      state = iota
	stateBound          // it has a namespace
	statePrepared       // Prepare has been called
	stateRunning
	stateClosed
)

// resources are descriptors from the setup process, and what was built on them.
type resources struct {
	sockets     map[fdKind][]int // not in use yet
	files       []*os.File       // in use, to close at the end
	queues      []*os.File       // of the device
	gate        *usernet.Gate    // nil: no splice tier
	stack       *usernet.Stack
	hostSockets *usernet.Sockets
	supervisor  *supervisor.Supervisor // nil: no seccomp tier
	binds       *bindClient            // binds sockets for containers
	hostOwner   supervisor.Namespace   // user namespace that owns the host's network namespace
	relays      []*udpRelay
	guestDiag   *nlsock.Socket // sock_diag of the namespace; nil: not needed
	hostDiag    *nlsock.Socket // sock_diag of the host; nil: not needed
	hostDiagFDs []int
}

// New checks the configuration. It starts nothing. The error joins a *ConfigError for each
// wrong field.
func New(cfg Config) (*Network, error) {
	need6 := cfg.Addr6.IsValid() || cfg.NoIPv4
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	n := &Network{cfg: cfg, need6: need6, pidfd: -1}
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

// guestResolvConf returns the host's resolv.conf with the network's resolver in place of the
// host's.
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

// Config returns what New was given, with defaults filled in.
func (n *Network) Config() Config { return n.cfg }

// Prepare does the part of Run that needs rights which Seal takes away: it receives the
// device from the namespace, opens the forwards, and returns when all descriptors are open.
// The command still waits. Run calls Prepare if the caller has not. An error inside the
// namespace is a *SetupError. After any error the Network is closed, and the command exits.
func (n *Network) Prepare(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.prepare(ctx)
}

// prepare is Prepare, called with mu held.
func (n *Network) prepare(ctx context.Context) error {
	switch n.state {
	case statePrepared:
		return nil
	case stateNew:
		return errors.New("prepare network: it has no namespace: call Wrap, Attach or Join first")
	case stateRunning, stateClosed:
		return errors.New("prepare network: it has run already, or was closed")
	}
	if err := n.open(ctx); err != nil {
		n.close()
		return err
	}
	n.state = statePrepared
	return nil
}

func (n *Network) open(ctx context.Context) (err error) {
	if n.cmd != nil {
		if n.cmd.Process == nil {
			return fmt.Errorf("prepare network: %s was not started", n.cmd.Args[0])
		}
		n.childEnd.Close() // so that the end of the child ends the connection
		if err := n.watchCommand(); err != nil {
			return err
		}
		if err := n.takeOver(ctx); err != nil {
			return err
		}
	}
	if fds := n.res.sockets[fdDiag]; len(fds) > 0 {
		// Connecting the socket to the kernel, before the command starts, keeps the guest from
		// sending to it.
		if n.res.guestDiag, err = nlsock.New(fds[0]); err != nil {
			return err
		}
	}
	if err := n.newStack(); err != nil {
		return err
	}
	if err := n.newSupervisor(); err != nil {
		return err
	}
	for _, f := range n.cfg.Forwards {
		if _, err := n.res.stack.Forward(f); err != nil {
			return err
		}
	}
	return n.openReverseForwards()
}

// watchCommand ends Run with the command. It duplicates a pidfd that the caller asked for. A
// kernel without pidfds (before 5.3) leaves ending Run to its context.
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
	return n.watch.setProcess(fd)
}

// takeOver receives everything from the setup process.
func (n *Network) takeOver(ctx context.Context) error {
	n.res.sockets = map[fdKind][]int{}
	const gate, seccomp = 5, 5
	got, limit := 0, len(n.wantedSockets())+n.cfg.Queues+gate+seccomp
	for {
		r, fds, err := n.channel.receive(ctx)
		if errors.Is(err, io.EOF) {
			return &SetupError{Step: "set up network", Err: errors.New("the setup process has ended")}
		}
		if err != nil {
			return err
		}
		for i, k := range r.Files {
			n.res.sockets[k] = append(n.res.sockets[k], fds[i])
		}
		if got += len(fds); got > limit {
			return fmt.Errorf("set up network: got %d descriptors from the setup process, at most %d were asked for", got, limit)
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

// takeFile takes over a descriptor from the setup process, and returns nil if there is none.
func (n *Network) takeFile(k fdKind) *os.File {
	fds := n.res.sockets[k]
	if len(fds) == 0 {
		return nil
	}
	n.res.sockets[k] = fds[1:]
	f := os.NewFile(uintptr(fds[0]), string(k))
	n.res.files = append(n.res.files, f)
	return f
}

func (n *Network) takeTUN() error {
	fds := n.res.sockets[fdTUN]
	if len(fds) != n.cfg.Queues {
		return fmt.Errorf("set up network: got %d queues from the setup process, %d were asked for", len(fds), n.cfg.Queues)
	}
	for _, fd := range fds {
		if err := checkTUN(fd, n.cfg.Device); err != nil {
			return fmt.Errorf("set up network: %w", err)
		}
		n.res.queues = append(n.res.queues, n.takeFile(fdTUN))
	}
	return nil
}

// takeGate takes over the sockets of the splice tier. missing is why there are none.
func (n *Network) takeGate(missing string) error {
	if !n.cfg.useSplice() {
		return nil
	}
	n.noSplice = missing
	for _, k := range []fdKind{fdGate4, fdCaller4, fdGate6, fdCaller6} {
		for _, fd := range n.res.sockets[k] {
			if proto, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL); err != nil || proto != unix.IPPROTO_TCP {
				return fmt.Errorf("set up network: %s from the setup process is no TCP socket: %w", k, errors.Join(err, os.ErrInvalid))
			}
		}
	}
	gate := &usernet.Gate{
		Listener4: n.takeFile(fdGate4), Caller4: n.takeFile(fdCaller4), Listener6: n.takeFile(fdGate6), Caller6: n.takeFile(fdCaller6),
		Always: n.cfg.Tier == TierSplice,
	}
	if missing == "" && (gate.Listener4 != nil || gate.Listener6 != nil) {
		n.res.gate = gate
	} else if n.cfg.Tier == TierSplice {
		return &SetupError{Step: "set up the splice tier", Err: errors.New(cmp.Or(missing, "no sockets came from the setup process")), Remedy: "cleat run --tier auto"}
	}
	return nil
}

func (n *Network) newStack() error {
	c := &n.cfg
	cfg := usernet.Config{
		TUN: n.res.queues[0], Queues: n.res.queues[1:], Gate: n.res.gate, MTU: c.MTU, Guest4: c.Addr4.Addr(), Guest6: c.Addr6.Addr(),
		Gateway4: c.Gateway4, Gateway6: c.Gateway6, ClientAliases: c.shown(), Policy: n.judge, Hook: n.hook(),
		Outbound4: c.Outbound4, Outbound6: c.Outbound6, OutboundInterface: c.OutboundInterface,
		Pcap: c.Pcap, Limits: c.Limits, Ledger: n.ledger,
	}
	if c.Device == DeviceTAP {
		cfg.Ethernet = &usernet.Ethernet{Guest: c.Ethernet.MAC, LAN: c.lan()}
	}
	var err error
	if n.res.stack, err = usernet.New(cfg); err != nil {
		return fmt.Errorf("start network: %w", err)
	}
	n.res.hostSockets = usernet.NewSockets(cfg)
	return nil
}

// lan returns the configuration of the other stations on the guest's Ethernet.
func (c *Config) lan() lan.Config {
	e := &c.Ethernet
	l := lan.Config{
		MAC: e.GatewayMAC, Addr4: c.Addr4, Addr6: c.Addr6,
		NoDHCP: e.NoDHCP, NoDHCPv6: e.NoDHCPv6, NoNDP: e.NoNDP, NoRA: e.NoRA || !c.NoConfigure,
		DNS: e.DNS, Search: e.Search, Hostname: e.Hostname, FQDN: e.FQDN,
	}
	if l.DNS == nil {
		l.DNS = c.DNS.Listen
	}
	return l
}

// Close frees what was opened if Run is never called. A command that waits for its network
// exits. Close does nothing while Run is running. Closing twice, or after Run, is harmless.
func (n *Network) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.state != stateRunning {
		n.close()
	}
	return nil
}

// close frees everything. It is called with mu held.
func (n *Network) close() {
	if n.state == stateClosed {
		return
	}
	n.state = stateClosed
	if n.channel != nil {
		n.channel.close()
		n.childEnd.Close()
	}
	n.watch.close()
	if n.pidfd >= 0 {
		unix.Close(n.pidfd)
	}
	for _, r := range n.res.relays {
		r.close()
	}
	if n.res.stack != nil {
		n.res.stack.Close()
	}
	if n.res.supervisor != nil {
		n.res.supervisor.Close()
	}
	for _, fds := range n.res.sockets {
		closeAll(fds)
	}
	closeAll(n.res.hostDiagFDs)
	if l := n.cfg.RuntimeListener; l != nil {
		l.Close()
	}
	for _, f := range n.res.files {
		f.Close()
	}
}

// stack returns the data path, which exists from Prepare on.
func (n *Network) stack() (*usernet.Stack, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.res.stack == nil {
		return nil, errors.New("the network is not prepared")
	}
	return n.res.stack, nil
}

// Forward opens a port of the host and returns the address it listens on. It works from
// Prepare until Run returns. The error wraps the cause, such as EADDRINUSE.
func (n *Network) Forward(f Forward) (netip.AddrPort, error) {
	s, err := n.stack()
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("forward port: %w", err)
	}
	return s.Forward(f)
}

// Unforward closes a port, identified by Protocol, Interface, and Listen as Forward returned
// it. Flows that came in by it continue. The error wraps ErrNotForwarded if there is no such
// forward.
func (n *Network) Unforward(f Forward) error {
	s, err := n.stack()
	if err != nil {
		return fmt.Errorf("close forwarded port: %w", err)
	}
	return s.Unforward(f)
}

// Forwards returns the open forwards, automatic ones included, in no particular order. Listen
// has the actual port where the configuration has port 0. There are none before Prepare.
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

// Tier returns the tier of TCP connections, unless their FlowInfo says otherwise, and why a
// faster one is not in use ("" if there is nothing to report). It is known from Prepare on.
func (n *Network) Tier() (tier Tier, reason string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.res.supervisor != nil {
		return TierSeccomp, ""
	}
	if n.res.gate != nil {
		return TierSplice, n.noSeccomp
	}
	if n.cfg.Pcap != nil {
		return TierTUN, "a capture sees only packets of the device"
	}
	return TierTUN, n.noSplice
}

// Flows describes all current flows. It fails before Prepare and after Run.
func (n *Network) Flows() ([]FlowInfo, error) {
	s, err := n.stack()
	if err != nil {
		return nil, fmt.Errorf("list flows: %w", err)
	}
	return s.Flows()
}

// Stats returns the counters: zero before Prepare, and the final ones after Run.
func (n *Network) Stats() Stats {
	s, err := n.stack()
	if err != nil {
		return Stats{}
	}
	stats := Stats{Stats: s.Stats(), Ledger: n.ledger.Usage()}
	if n.res.supervisor != nil {
		stats.Supervisor = n.res.supervisor.Stats()
	}
	return stats
}

// Names returns the names by which the guest recently found an address, the latest first.
func (n *Network) Names(a netip.Addr) []string { return n.rules.Names(a) }
