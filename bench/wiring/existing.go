package wiring

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"cleat/lab"
	"cleat/link"
	"cleat/netns"

	"github.com/vishvananda/netlink"
)

// Existing is a path that is there already, from a to b: nothing is made,
// nothing is changed. The address is b's as a reaches it; zero means to find
// one. The error says which addresses were tried.
func Existing(ctx context.Context, a, b *netns.NS, address netip.Addr) (*Network, error) {
	candidates := []netip.Addr{address}
	if !address.IsValid() {
		var err error
		if candidates, err = addresses(b); err != nil {
			return nil, err
		}
	}
	var tried []error
	for _, addr := range candidates {
		port, err := reach(ctx, a, b, addr)
		if err != nil {
			tried = append(tried, err)
			continue
		}
		at := netip.AddrPortFrom(addr, port)
		client, server := &lab.Node{NS: a}, &lab.Node{NS: b}
		device, err := routeDevice(a, addr)
		if err != nil {
			return nil, err
		}
		p := Pair{Client: client, Server: server, ClientNode: client, Device: device, Listen: at, Dial: at}
		return &Network{Pairs: []Pair{p}}, nil
	}
	if len(tried) == 0 {
		return nil, fmt.Errorf("%s has no address that another namespace could reach", b)
	}
	return nil, fmt.Errorf("no address of %s answers %s: %w", b, a, errors.Join(tried...))
}

// addresses are those of a namespace by which another might reach it.
func addresses(ns *netns.NS) ([]netip.Addr, error) {
	h, err := link.Handle(ns)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	list, err := h.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list the addresses of %s: %w", ns, err)
	}
	var out []netip.Addr
	for _, a := range list {
		if addr, ok := netip.AddrFromSlice(a.IP); ok && addr.Unmap().IsGlobalUnicast() {
			out = append(out, addr.Unmap())
		}
	}
	return out, nil
}

// reachTimeout is how long a connection over the path may take; a second is
// what TCP waits before it sends the first SYN again.
const reachTimeout = 2 * time.Second

// reach makes one TCP connection from a to addr in b and returns the port that
// b's kernel chose to listen at, free again.
func reach(ctx context.Context, a, b *netns.NS, addr netip.Addr) (uint16, error) {
	var l net.Listener
	if err := b.Do(func() (err error) {
		l, err = (&net.ListenConfig{}).Listen(ctx, "tcp", netip.AddrPortFrom(addr, 0).String())
		return err
	}); err != nil {
		return 0, err
	}
	defer l.Close()
	to := l.Addr().(*net.TCPAddr).AddrPort()
	err := a.Do(func() error {
		c, err := (&net.Dialer{Timeout: reachTimeout}).DialContext(ctx, "tcp", to.String())
		if err != nil {
			return err
		}
		return c.Close()
	})
	return to.Port(), err
}

// routeDevice is the link by which a namespace sends to addr.
func routeDevice(ns *netns.NS, addr netip.Addr) (string, error) {
	h, err := link.Handle(ns)
	if err != nil {
		return "", err
	}
	defer h.Close()
	routes, err := h.RouteGet(addr.AsSlice())
	if err != nil || len(routes) == 0 {
		return "", fmt.Errorf("find the route of %s to %s: %w", ns, addr, err)
	}
	l, err := h.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return "", fmt.Errorf("find link %d of %s: %w", routes[0].LinkIndex, ns, err)
	}
	return l.Attrs().Name, nil
}
