package sandbox

import (
	"context"
	"errors"
	"net/netip"
	"os"

	"cleat/policy"
	"cleat/sandbox/supervisor"
	"cleat/usernet"
)

// rejectSeccompTier returns an error if the configuration asks for the seccomp tier. It is for
// programs that this package does not start.
func (n *Network) rejectSeccompTier() error {
	if n.cfg.Tier != TierSeccomp {
		return nil
	}
	return &SetupError{Step: "set up the seccomp tier", Err: errors.New("it is for commands that are given a network by Wrap, and for containers that come from an OCI runtime"), Remedy: "cleat run --tier auto"}
}

// planSupervisor plans for the seccomp tier if the configuration requires it. With TierAuto it
// does so if the policy allows the tier and nothing is known to be missing.
func (n *Network) planSupervisor(p *plan) {
	hostSockets := n.rules.HostSockets()
	switch {
	case n.cfg.Tier == TierSeccomp:
		p.Supervise = true
	case n.cfg.Tier == TierAuto && n.cfg.Pcap == nil && (hostSockets == policy.HostSocketsTCP || hostSockets == policy.HostSocketsUDP):
		p.Supervise, p.SuperviseOptional = true, true
		if err := supervisor.Check(usernet.NewSockets(usernet.Config{})); err != nil {
			n.noSeccomp, p.Supervise = err.Error(), false
		}
	}
	if p.Supervise {
		p.addSockets(n.supervisorSockets())
	}
}

func (n *Network) supervisorSockets() []fdKind {
	kinds := []fdKind{fdRoutes, fdNews}
	if n.cfg.Addr4.IsValid() {
		kinds = append(kinds, fdFresh4)
	}
	if n.cfg.Addr6.IsValid() {
		kinds = append(kinds, fdFresh6)
	}
	return kinds
}

// newSupervisor creates the supervisor from what came from the setup process.
func (n *Network) newSupervisor() error {
	var notify *os.File // not in res.files: the supervisor takes ownership
	if fds := n.res.sockets[fdNotify]; len(fds) > 0 {
		notify, n.res.sockets[fdNotify] = os.NewFile(uintptr(fds[0]), string(fdNotify)), fds[1:]
	}
	if n.cfg.Tier != TierSeccomp && notify == nil {
		return nil
	}
	cfg := supervisor.Config{
		Routes: n.takeFile(fdRoutes), RouteEvents: n.takeFile(fdNews), Fresh4: n.takeFile(fdFresh4), Fresh6: n.takeFile(fdFresh6),
		Interface: n.cfg.Interface, Host: n.res.hostSockets, Ledger: n.ledger,
		Judge: func(to netip.AddrPort) (netip.AddrPort, bool) { return n.hostDestination(TCP, to) },
	}
	if (notify == nil) != (n.cmd == nil) || cfg.Routes == nil || cfg.RouteEvents == nil {
		return errors.New("set up the seccomp tier: descriptors from the setup process are missing")
	}
	ports, err := n.newPortLender()
	if err != nil {
		return err
	}
	cfg.Lend = ports.lend
	if n.rules.HostSockets() == policy.HostSocketsUDP {
		cfg.JudgeUDP = func(to netip.AddrPort) (netip.AddrPort, bool) { return n.hostDestination(UDP, to) }
	}
	if n.cmd == nil {
		n.res.binds = &bindClient{channel: n.channel, calls: map[uint32]chan bindMessage{}, onLost: func(err error) {
			n.cfg.Log.Warn("the process that binds sockets for containers has ended; their binds fail from now on", "error", err)
		}}
		cfg.Bind = n.res.binds.bind
		cfg.Network = n.netns
		if n.res.hostOwner, err = hostOwner(); err != nil {
			return err
		}
	}
	n.res.supervisor, err = supervisor.New(cfg)
	if err == nil && n.cmd != nil {
		err = n.res.supervisor.Add(supervisor.Program{Notifications: notify, Landlocked: true})
	}
	if err != nil {
		return &SetupError{Step: "set up the seccomp tier", Err: err, Remedy: "cleat run --tier splice"}
	}
	return nil
}

// supervise runs the supervisor. Threads that a program keeps blocked are left behind, and end
// with this process.
func (n *Network) supervise(ctx context.Context) error {
	if n.cmd == nil {
		go n.res.binds.run()
		defer n.channel.close()                         // ends binds.run
		defer context.AfterFunc(ctx, n.channel.close)() // ends calls that wait for a bind
	}
	err := n.res.supervisor.Run(ctx)
	if errors.Is(err, supervisor.ErrStuck) {
		n.cfg.Log.Warn("end the seccomp tier; a thread is left behind", "error", err)
		return nil
	}
	return err
}

// hostDestination returns the address that a socket of the host connects to on behalf of the
// command. ok is false for a flow that must take the device, because it is refused, or carried
// by a Hook or the resolver: the device's Stack decides and reports.
func (n *Network) hostDestination(proto Protocol, to netip.AddrPort) (host netip.AddrPort, ok bool) {
	allowed := n.rules.HostSockets()
	if n.cfg.Hook != nil || allowed == policy.HostSocketsNone || proto == UDP && allowed != policy.HostSocketsUDP {
		return to, false
	}
	from := n.cfg.Addr4
	if to.Addr().Is6() {
		from = n.cfg.Addr6
	}
	v := n.silent.Judge(Flow{Protocol: proto, Source: netip.AddrPortFrom(from.Addr(), 0), Destination: to})
	switch v.Action {
	case Allow:
		return to, true
	case Redirect:
		return v.To, true
	case Use:
		v.Conn.Close()
	}
	return to, false
}
