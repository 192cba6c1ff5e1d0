package named

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"cleat/link"
	"cleat/netns"
	"cleat/network/attach"
	"cleat/network/names"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// insidePrefix begins the IDs of sockets inside containers. No network's name has a colon.
const insidePrefix = "inside:"

// insideID returns the ID of the sockets inside the container of an endpoint.
func insideID(endpoint string) string { return insidePrefix + endpoint }

// errPortTaken means that a program of the container has the port of name servers.
var errPortTaken = errors.New("the container has a name server of its own")

// sameView reports whether two sockets show the same names.
func sameView(a, b names.Socket) bool {
	return slices.Equal(a.Networks, b.Networks) && a.OnlyOurs == b.OnlyOurs
}

// serveInside makes the name server, if it runs, serve inside a container.
func (s *session) serveInside(ctx context.Context, at names.Socket, ns *netns.NS, container attach.Container) error {
	return s.withNames(ctx, func(c *names.Client) error {
		state, err := c.State(ctx)
		if err != nil {
			return err
		}
		return serveInside(ctx, c, state.Sockets, at, ns, container.PID)
	})
}

// serveInside opens sockets in a container's namespace and passes them to the name server, which
// serves some already. pid is that of the container's first process, with which the sockets end; 0
// if there is none.
func serveInside(ctx context.Context, c *names.Client, served []names.SocketState, at names.Socket, ns *netns.NS, pid int) error {
	_, cookie, err := identity(ns)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(served, func(k names.SocketState) bool { return k.ID == at.ID }); i >= 0 {
		switch {
		case cookie == 0: // it may be another namespace
			err = c.Stop(ctx, at.ID)
		case served[i].Cookie != cookie: // the new sockets take the place of those in the old namespace
		case sameView(served[i].Socket, at):
			return nil
		default:
			return c.Update(ctx, at)
		}
		if err != nil {
			return err
		}
	}
	err = ns.Do(func() error {
		if err := loopbackUp(ns); err != nil {
			return err
		}
		udp, tcp, err := names.Open(netip.AddrPortFrom(insideServer, dnsPort))
		if errors.Is(err, unix.EADDRINUSE) {
			return errPortTaken
		}
		if err != nil {
			return err
		}
		defer udp.Close()
		defer tcp.Close()
		process := openProcess(pid, ns)
		if process == nil {
			return c.Serve(ctx, at, udp, tcp)
		}
		defer process.Close()
		return c.ServeWhile(ctx, at, udp, tcp, process)
	})
	if errors.Is(err, names.ErrNotFound) { // the server has just started, and gets all names soon
		return nil
	}
	return err
}

// loopbackUp brings the loopback device of a namespace up. `ip netns add` leaves it down.
func loopbackUp(ns *netns.NS) error {
	lo, err := link.Find(ns, "lo")
	if err != nil {
		return err
	}
	return lo.Up()
}

// openProcess returns the pidfd of a process in a namespace; nil if there is no such process.
func openProcess(pid int, ns *netns.NS) *os.File {
	if pid == 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	theirs, err := netns.OfPID(pid)
	if err != nil {
		f.Close()
		return nil
	}
	defer theirs.Close()
	a, errA := theirs.ID()
	b, errB := ns.ID()
	if errA != nil || errB != nil || a != b {
		f.Close()
		return nil
	}
	return f
}

// stopInside ends the service inside a container.
func (s *session) stopInside(ctx context.Context, id string) error {
	return s.withNames(ctx, func(c *names.Client) error { return c.Stop(ctx, insideID(id)) })
}

// sendInside passes sockets inside all containers that need them to a name server that knows all
// networks. What fails for one container is found by the next check, and does not keep the others
// from their names.
func (s *session) sendInside(ctx context.Context, c *names.Client) error {
	state, err := c.State(ctx)
	if err != nil {
		return err
	}
	for _, r := range s.store.resolvers() {
		if r.Inside == nil {
			continue
		}
		ns := r.open()
		if ns == nil {
			continue
		}
		if err := serveInside(ctx, c, state.Sockets, *r.Inside, ns, r.Container.PID); err != nil {
			s.note("names are not served inside %s: %v", r.Container.ShortName(), err)
		}
		ns.Close()
	}
	return nil
}

// releaseDead closes sockets in namespaces whose containers are gone. Without that, the sockets of a
// named namespace, which has no process, would keep it and its links alive.
func releaseDead(ctx context.Context, store Store) error {
	c, err := names.Dial(ctx, store.nameServerPath())
	if errors.Is(err, names.ErrNotRunning) {
		return nil
	}
	if err != nil {
		return err
	}
	defer c.Close()
	state, err := c.State(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, k := range state.Sockets {
		id, inside := strings.CutPrefix(k.ID, insidePrefix)
		if !inside {
			continue
		}
		if r, err := store.resolver(id); err == nil && r != nil && r.Inside != nil {
			if ns := r.open(); ns != nil {
				ns.Close()
				continue
			}
		}
		errs = append(errs, c.Stop(ctx, k.ID))
	}
	return errors.Join(errs...)
}

// engineServers returns those of a container's name servers that only the container reaches:
// resolvers of its engine, at a loopback address (Docker) or on a network of the container's
// (Podman). Those that were copied from the host are not among them, nor gateways of our networks.
func (s *session) engineServers(ns *netns.NS, servers []netip.Addr) ([]netip.Addr, error) {
	if len(servers) == 0 {
		return nil, nil
	}
	near, err := prefixesOf(ns)
	if err != nil {
		return nil, err
	}
	networks, err := s.store.Networks()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(servers), func(a netip.Addr) bool {
		switch {
		case a == insideServer:
			return true
		case a.IsLoopback():
			return !answers(ns, a)
		case slices.ContainsFunc(networks, func(n *Network) bool { return n.OnHost() && slices.Contains(n.gateways(), a) }):
			return true
		}
		return !slices.ContainsFunc(near, func(p netip.Prefix) bool { return p.Contains(a) })
	}), nil
}

// prefixesOf returns the prefixes of all addresses in a namespace.
func prefixesOf(ns *netns.NS) ([]netip.Prefix, error) {
	h, err := link.Handle(ns)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	addrs, err := h.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses of %s: %w", ns, err)
	}
	var all []netip.Prefix
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		bits, _ := a.Mask.Size()
		if ok {
			all = append(all, netip.PrefixFrom(ip.Unmap(), bits))
		}
	}
	return all, nil
}

// refusedWithin is how long the kernel may take to report that nobody listens at a loopback
// address. It usually takes microseconds.
const refusedWithin = 50 * time.Millisecond

// answers reports whether a name server listens at a loopback address of a namespace, or might.
func answers(ns *netns.NS, a netip.Addr) bool {
	var c net.Conn
	err := ns.Do(func() (err error) {
		c, err = net.Dial("udp", netip.AddrPortFrom(a, dnsPort).String())
		return err
	})
	if err != nil {
		return false
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(refusedWithin))
	// A query for the servers of the root: one question, recursion desired.
	query := []byte{0x4c, 0x45, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1}
	if _, err := c.Write(query); err != nil {
		return false
	}
	_, err = c.Read(make([]byte, 512))
	return !errors.Is(err, unix.ECONNREFUSED)
}
