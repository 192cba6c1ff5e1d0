package cni

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"cleat/network/attach"
	"cleat/network/named"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// check compares the container with what an ADD has made of it.
func (c *call) check(ctx context.Context) error {
	if c.conf.prev == nil {
		return types.NewError(types.ErrInvalidNetworkConfig, "CHECK needs prevResult", "")
	}
	if err := c.checkNamespace(); err != nil {
		return err
	}
	e := c.endpoint()
	if e == nil {
		return types.NewError(types.ErrUnknownContainer, fmt.Sprintf("container %s is not on network %s", c.containerID, c.conf.Network), "")
	}
	if err := c.compareResult(e); err != nil {
		return err
	}
	wrong, err := named.CheckEndpoint(ctx, c.Networks, e, c.listed)
	if err != nil || wrong == nil {
		return err
	}
	return fault(errGeneral, wrong)
}

// fault returns an error for what is wrong with a network or a container.
func fault(code uint, d *named.Difference) error {
	text := fmt.Sprintf("network %s: %s", d.Network, d.What)
	if d.Container != "" {
		text = fmt.Sprintf("%s on %s", d.Container, text)
	}
	return types.NewError(code, text, cmp.Or(d.Remedy, "`cleat net check --repair` puts it right"))
}

// compareResult returns an error if the previous result lacks the container's link or one of its addresses.
func (c *call) compareResult(e *named.Endpoint) error {
	lacks := func(what string, arg any) error {
		return types.NewError(errGeneral, fmt.Sprintf("the %s of %s is %s, which prevResult does not have", what, e.Container.QualifiedName(), arg), "")
	}
	at := slices.IndexFunc(c.conf.prev.Interfaces, func(i *types100.Interface) bool { return i.Name == e.Interface && i.Sandbox == c.netns })
	if at < 0 {
		return lacks("link", e.Interface+" in "+c.netns)
	}
	var previous []netip.Addr
	for _, ip := range c.conf.prev.IPs {
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			previous = append(previous, a.Unmap())
		}
	}
	for _, a := range e.Addresses {
		if !slices.Contains(previous, a) {
			return lacks("address", a)
		}
	}
	return nil
}

// listed reports whether the previous result has a route. A plug-in after this one may have taken it out.
func (c *call) listed(r attach.Route) bool {
	return slices.ContainsFunc(c.conf.prev.Routes, func(p *types.Route) bool {
		dst, via := ipNet(r.To), r.Via.AsSlice()
		return p.Dst.String() == dst.String() && (p.GW == nil || p.GW.Equal(via))
	})
}

// status reports whether an ADD could succeed. It takes no lock.
func (c *call) status(context.Context) error {
	store := named.Store{Store: c.Networks.Attach.Store}
	n, err := store.Network(c.conf.Network)
	if errors.As(err, new(*named.NoNetworkError)) && c.conf.Create != nil {
		return nil
	}
	if err != nil {
		e := c.asError(err)
		e.Code = types.ErrPluginNotAvailable
		return e
	}
	wrong, err := named.HostFault(c.Networks, n)
	if err == nil && wrong == nil {
		err = named.FreeAddress(c.Networks, n)
	}
	if err != nil {
		e := c.asError(err)
		e.Code = types.ErrPluginNotAvailable
		return e
	}
	if wrong != nil {
		return fault(types.ErrLimitedConnectivity, wrong)
	}
	return nil
}
