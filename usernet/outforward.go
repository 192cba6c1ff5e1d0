package usernet

import (
	"net/netip"
	"os"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// outForwardCost is for a connection's socket in the guest's namespace and the
// host socket.
var outForwardCost = tcpFlowCost.Plus(junctionCost)

// outForward is a port in the guest's namespace that leads to an address on the
// host's side. Both ends of its connections are sockets, so their bytes are
// spliced.
type outForward struct {
	acceptor
	file *os.File
	to   netip.AddrPort
}

// ForwardOut connects the clients of a listening TCP socket in the guest's
// namespace to an address on the host's side. It asks neither Policy nor Hook.
// The Stack owns the socket from then on: it closes it when it ends, or at once
// if ForwardOut returns an error.
func (s *Stack) ForwardOut(listener *os.File, to netip.AddrPort) error {
	e := s.group.engines[0]
	err := e.callError(func() error {
		o := &outForward{file: listener, to: to}
		accept := func() unix.Errno { return o.acceptUpTo(acceptsPerRound, o.connect) }
		o.acceptor = acceptor{s: e, fd: int(listener.Fd()), accept: accept, onLost: o.close}
		if err := unix.SetNonblock(o.fd, true); err != nil {
			return err
		}
		if err := o.add(); err != nil {
			return err
		}
		e.outForwards[o] = struct{}{}
		return nil
	})
	if err != nil {
		listener.Close()
	}
	return err
}

func (o *outForward) close() {
	if o.handle != 0 {
		o.remove()
	}
	delete(o.s.outForwards, o)
	o.file.Close()
}

// connect opens a flow for an accepted client. If it returns true, the flow owns fd.
func (o *outForward) connect(fd int, client netip.AddrPort) bool {
	listening, errno := sys.LocalAddress(fd)
	if errno != 0 {
		return false
	}
	return o.s.onClientEngine(outForwardCost, func(e *engine, costs account) {
		e.tcp.callHost(guestClient{fd: fd, local: client, remote: listening.AddrPort(), to: o.to, costs: costs})
	})
}

// guestClient is a client of an outForward.
type guestClient struct {
	fd            int            // the accepted socket
	local, remote netip.AddrPort // the client's address, and the one it has connected to; both in the guest's namespace
	to            netip.AddrPort // where it is forwarded to
	costs         account
}

// callHost connects to the host's side for a client. The client is connected
// already, so it gets a RST if that fails.
func (t *tcpTable) callHost(c guestClient) {
	if f := t.flows[keyOf(c.local, c.remote)]; f != nil { // an earlier connection between the same ports
		f.drop()
	}
	f, other := t.newFlow(c.local, c.remote, c.costs)
	if other != nil {
		c.costs.close()
		abandon(c.fd)
		return
	}
	f.insideFD, f.host, f.junctionCharged = c.fd, c.to, true
	resetOnClose(c.fd, true)
	f.connect()
}
