package cni

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"cleat/network/named"

	"github.com/containernetworking/cni/pkg/types"
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
	var previous []netip.Addr
	for _, ip := range c.conf.prev.IPs {
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			previous = append(previous, a.Unmap())
		}
	}
	for _, a := range e.Addresses {
		if !slices.Contains(previous, a) {
			return types.NewError(errGeneral, fmt.Sprintf("the address of %s is %s, which prevResult does not have", e.Container.QualifiedName(), a), "")
		}
	}
	wrong, err := named.CheckEndpoint(ctx, c.Networks, e)
	if err == nil && wrong != "" {
		err = types.NewError(errGeneral, fmt.Sprintf("%s: %s", e.Container.QualifiedName(), wrong), "`cleat net check --repair` puts it right")
	}
	return err
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
	missing, err := named.MissingOnHost(c.Networks, n)
	if err != nil || len(missing) > 0 {
		return types.NewError(types.ErrLimitedConnectivity, fmt.Sprintf("network %s: missing on the host: %v %v", n.Name, missing, err), "`cleat net check --repair` puts it right")
	}
	return nil
}
