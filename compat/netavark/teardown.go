package netavark

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"cleat/network/attach"
	"cleat/network/named"
)

// teardown disconnects a container from networks, as far as possible. The container's namespace may be
// gone.
func (c *call) teardown(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	var o options
	if err := json.Unmarshal(c.Stdin, &o); err != nil {
		return loadError("network options", err)
	}
	var all []*join
	var errs []error
	for _, option := range o.Networks {
		info, ok := o.Info[option.Name]
		if !ok {
			errs = append(errs, failure("network info for network %s not found", option.Name))
			continue
		}
		j := &join{network: &info, option: option}
		var err error
		if j.plugin, err = c.pluginFor(info.Driver); err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, j)
	}
	errs = append(errs, c.leaveAll(ctx, &o, all))
	return list(errs)
}

// list returns all errors as one; nil if there is none.
func list(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) <= 1 {
		return errors.Join(errs...)
	}
	var text strings.Builder
	text.WriteString("netavark encountered multiple errors:")
	for _, err := range errs {
		fmt.Fprintf(&text, "\n\t- %s", messageOf(err))
	}
	return &contractError{text.String()}
}

// leaveAll disconnects a container from networks. Ports of a container that stays on another network are
// published there.
func (c *call) leaveAll(ctx context.Context, o *options, joins []*join) error {
	var errs []error
	var ports []named.Port
	for _, j := range joins {
		if j.plugin != "" {
			errs = append(errs, c.tearDownByPlugin(ctx, o, j))
			continue
		}
		e, err := c.endpoint(o, j.network)
		if e != nil {
			err = named.Leave(ctx, c.Networks, e.Network, e.Container)
			ports = append(ports, e.Wanted.Ports...)
		}
		errs = append(errs, err)
	}
	if len(ports) > 0 {
		errs = append(errs, c.publishElsewhere(ctx, o, ports))
	}
	return list(errs)
}

// endpoint returns the container's endpoint on a network of Podman; nil if it has none.
func (c *call) endpoint(o *options, n *network) (*named.Endpoint, error) {
	store := named.Store{Store: c.Networks.Attach.Store}
	for _, name := range n.names() {
		e, err := store.Endpoint(name, attach.Container{Manager: Manager, Key: o.ContainerID}.FileName())
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if m := e.Wanted.Managed; m != nil && m.Network == n.Name {
			return e, nil
		}
	}
	return nil, nil
}

// publishElsewhere publishes ports on a network that the container is still on.
func (c *call) publishElsewhere(ctx context.Context, o *options, ports []named.Port) error {
	all, err := named.EndpointsOf(c.Networks, attach.Container{Manager: Manager, Key: o.ContainerID})
	if err != nil {
		return err
	}
	store := named.Store{Store: c.Networks.Attach.Store}
	for _, e := range all {
		if n, err := store.Network(e.Network); err != nil || n.Driver != named.Bridge || n.Internal {
			continue
		}
		_, err := named.Publish(ctx, c.Networks, e.Network, o.ContainerID, ports)
		return err
	}
	return nil
}
