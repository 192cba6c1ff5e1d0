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
)

// connectTimeout bounds a connection over an existing path; TCP waits a second before
// it sends the first SYN again.
const connectTimeout = 2 * time.Second

// Existing returns the network that already joins namespaces a and b, with one pair,
// whose server is in b. It changes nothing. The address is b's as a reaches it; the
// zero Addr tries all addresses of b. The error lists what was tried.
func Existing(ctx context.Context, a, b *netns.NS, address netip.Addr) (*Network, error) {
	candidates := []netip.Addr{address}
	if !address.IsValid() {
		var err error
		if candidates, err = addresses(b); err != nil {
			return nil, err
		}
	}
	if len(candidates) == 0 {
		return nil, fmt.Errorf("%s has no address that another namespace could reach", b)
	}
	var errs []error
	for _, addr := range candidates {
		at, err := findPort(ctx, a, b, addr)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		device, err := routeDevice(a, addr)
		if err != nil {
			return nil, err
		}
		nw := &Network{}
		nw.addPair(&lab.Node{NS: a}, device, &lab.Node{NS: b}, at, at)
		return nw, nil
	}
	return nil, fmt.Errorf("%s reaches no address of %s: %w", a, b, errors.Join(errs...))
}

// addresses returns the addresses of a namespace at which another one could reach it.
func addresses(ns *netns.NS) ([]netip.Addr, error) {
	var list []net.Addr
	if err := ns.Do(func() (err error) { list, err = net.InterfaceAddrs(); return err }); err != nil {
		return nil, fmt.Errorf("list the addresses of %s: %w", ns, err)
	}
	var out []netip.Addr
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().IsGlobalUnicast() {
			out = append(out, p.Addr())
		}
	}
	return out, nil
}

// findPort makes one TCP connection from a to addr in b. It returns the address with
// the port that b's kernel chose, which is free again.
func findPort(ctx context.Context, a, b *netns.NS, addr netip.Addr) (netip.AddrPort, error) {
	l, err := listenIn(ctx, b, netip.AddrPortFrom(addr, 0))
	if err != nil {
		return netip.AddrPort{}, err
	}
	defer l.Close()
	at := l.Addr().(*net.TCPAddr).AddrPort()
	return at, dialIn(ctx, a, at, connectTimeout)
}

// routeDevice returns the name of the link by which a namespace sends to addr.
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
