package cni

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"cleat/network/attach"
	"cleat/network/named"

	"github.com/containernetworking/cni/pkg/types"
)

// endpoint returns the endpoint that an ADD with the same variables has made; nil if there is none. Since
// then the configuration may have got another network.
func (c *call) endpoint() *named.Endpoint {
	store := named.Store{Store: c.Networks.Attach.Store}
	for _, key := range []string{c.containerID, secondKey(c.containerID, c.ifname)} {
		e, err := store.Endpoint(c.conf.Network, attach.Container{Manager: Manager, Key: key}.FileName())
		if err == nil && e.Wanted.Managed != nil && e.Wanted.Managed.Interface == c.ifname {
			return e
		}
	}
	all, _ := named.ManagedBy(c.Networks, Manager) // without files that can't be read
	i := slices.IndexFunc(all, func(e *named.Endpoint) bool {
		m := e.Wanted.Managed
		return m != nil && m.Container == c.containerID && m.Network == c.conf.Name && m.Interface == c.ifname
	})
	if i < 0 {
		return nil
	}
	return all[i]
}

// del disconnects the container. It succeeds if there is nothing to do.
func (c *call) del(ctx context.Context) error {
	e := c.endpoint()
	if e == nil {
		return nil
	}
	return named.Leave(ctx, c.Networks, e.Network, e.Container)
}

// gc disconnects the containers that this configuration has connected and that the runtime does not list.
func (c *call) gc(ctx context.Context) error {
	if _, err := named.ReleaseForgotten(ctx, c.Networks, ""); err != nil {
		return err
	}
	if c.conf.valid == nil {
		return nil
	}
	all, err := named.ManagedBy(c.Networks, Manager)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range all {
		m := e.Wanted.Managed
		if m == nil || m.Network != c.conf.Name ||
			slices.Contains(*c.conf.valid, types.GCAttachment{ContainerID: m.Container, IfName: m.Interface}) {
			continue
		}
		if err := named.Leave(ctx, c.Networks, e.Network, e.Container); err != nil {
			errs = append(errs, fmt.Errorf("disconnect %s: %w", e.Container.QualifiedName(), err))
		}
	}
	return errors.Join(errs...)
}
