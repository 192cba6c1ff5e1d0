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

// handOverFresh hands over what the host's side takes to supervise programs.
func (i *Guest) handOverFresh() error {
	if !i.plan.Fresh {
		return nil
	}
	kinds := []kind{kindRoutes, kindNews}
	if i.plan.Addr4.IsValid() {
		kinds = append(kinds, kindFresh4)
	}
	if i.plan.Addr6.IsValid() {
		kinds = append(kinds, kindFresh6)
	}
	return i.handOverSome(kinds)
}

// beSupervised puts the seccomp tier's filter on this thread, which is about to
// become the command. It reports whether it did.
func (i *Guest) beSupervised() (bool, error) {
	if !i.plan.Supervise {
		return false, nil
	}
	fd, err := supervisor.Restrict()
	if err != nil && i.plan.Unsupervised && !errors.Is(err, supervisor.ErrPartlyRestricted) {
		i.noSeccomp = err.Error()
		return false, nil
	}
	if err != nil {
		return false, &SetupError{Step: "set up the seccomp tier", Err: err, Remedy: "cleat run --tier splice"}
	}
	defer closeAll([]int{fd})
	return true, i.end.send(report{Stage: stageSockets, Files: []kind{kindNotify}}, fd)
}

// unsupervised refuses the seccomp tier for what we do not start ourselves.
func (n *Network) unsupervised() error {
	if n.cfg.Tier != TierSeccomp {
		return nil
	}
	return &SetupError{Step: "set up the seccomp tier", Err: errors.New("it is for commands that are given a network by Wrap, and for containers that come from an OCI runtime"), Remedy: "cleat run --tier auto"}
}

// mayHostSockets tells whether the policy lets the command have sockets of the host's
// without its network's owner asking for them by name.
func (n *Network) mayHostSockets() bool {
	may := n.rules.HostSockets()
	return may == policy.HostSocketsTCP || may == policy.HostSocketsUDP
}

// planSupervisor plans for the seccomp tier: where it is insisted on, and for auto
// where the policy lets it and nothing here is known to be missing.
func (n *Network) planSupervisor(p *plan) {
	switch {
	case n.cfg.Tier == TierSeccomp:
		p.Supervise = true
	case n.cfg.Tier != TierAuto || n.cfg.Pcap != nil || !n.mayHostSockets():
	default:
		err := supervisor.Check(usernet.NewSockets(usernet.Config{}))
		if err != nil {
			n.noSeccomp = err.Error()
		}
		p.Supervise, p.Unsupervised = err == nil, true
	}
	p.Fresh = p.Supervise
}

// newSupervisor takes over what came from the inside for the seccomp tier.
func (n *Network) newSupervisor() error {
	files := map[kind]*os.File{}
	for _, k := range []kind{kindNotify, kindRoutes, kindNews, kindFresh4, kindFresh6} {
		for _, fd := range n.opened.sockets[k] {
			files[k] = os.NewFile(uintptr(fd), string(k))
			if k != kindNotify { // which the supervisor takes over
				n.opened.supervised = append(n.opened.supervised, files[k])
			}
		}
		delete(n.opened.sockets, k)
	}
	if n.cfg.Tier != TierSeccomp && files[kindNotify] == nil {
		return nil
	}
	if (files[kindNotify] == nil) != (n.cmd == nil) || files[kindRoutes] == nil || files[kindNews] == nil {
		return errors.New("set up the seccomp tier: nothing came from inside")
	}
	ports, err := n.newPorts()
	if err != nil {
		return err
	}
	cfg := supervisor.Config{
		Routes: files[kindRoutes], RouteEvents: files[kindNews], Fresh4: files[kindFresh4], Fresh6: files[kindFresh6],
		Interface: n.cfg.Interface, Judge: n.reach, Host: n.opened.hostSockets, Ports: ports, Ledger: n.ledger,
	}
	if n.rules.HostSockets() == policy.HostSocketsUDP {
		cfg.JudgeUDP = n.reachUDP
	}
	if n.cmd == nil {
		lost := func(err error) {
			n.cfg.Log.Warn("the process that binds sockets for containers has ended; their binds fail from now on", "error", err)
		}
		n.opened.binder = newBinder(n.channel.conn, lost)
		cfg.Bind = n.opened.binder.bind
		cfg.Network = n.served
		if n.opened.hostOwner, err = hostOwner(); err != nil {
			return err
		}
		if n.opened.hostCookie, err = hostCookie(); err != nil {
			return err
		}
	}
	n.opened.supervisor, err = supervisor.New(cfg)
	if err == nil && n.cmd != nil {
		err = n.opened.supervisor.Add(supervisor.Program{Notifications: files[kindNotify], Landlocked: true})
	}
	if err != nil {
		return &SetupError{Step: "set up the seccomp tier", Err: err, Remedy: "cleat run --tier splice"}
	}
	return nil
}

// supervise runs the supervisor. Threads that a program keeps waiting are left behind, and
// end with this process.
func (n *Network) supervise(ctx context.Context) error {
	if n.cmd == nil {
		go n.opened.binder.run()
		defer n.channel.close()                         // which ends that
		defer context.AfterFunc(ctx, n.channel.close)() // and waits for its answers
	}
	err := n.opened.supervisor.Run(ctx)
	if errors.Is(err, supervisor.ErrStuck) {
		n.cfg.Log.Warn("end the seccomp tier; a thread is left behind", "error", err)
		return nil
	}
	return err
}

// reachUDP is reach for UDP, where the policy lets the command have such sockets.
func (n *Network) reachUDP(to netip.AddrPort) (netip.AddrPort, bool) {
	if n.rules.HostSockets() != policy.HostSocketsUDP {
		return to, false
	}
	return n.reachBy(UDP, to)
}

// reach tells where a connection of the command's is to be made to on its behalf.
// What is refused or carried by somebody else takes the device, where that
// happens and is told.
func (n *Network) reach(to netip.AddrPort) (netip.AddrPort, bool) { return n.reachBy(TCP, to) }

func (n *Network) reachBy(p Protocol, to netip.AddrPort) (netip.AddrPort, bool) {
	if n.cfg.Hook != nil || n.rules.HostSockets() == policy.HostSocketsNone {
		return to, false
	}
	from := n.cfg.Addr4
	if to.Addr().Is6() {
		from = n.cfg.Addr6
	}
	v := n.quiet.Judge(Flow{Protocol: p, Source: netip.AddrPortFrom(from.Addr(), 0), Destination: to})
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
