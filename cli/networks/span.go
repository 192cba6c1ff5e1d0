package networks

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"

	"cleat/network/attach"
	"cleat/network/named"
	"cleat/overlay/control"
)

// registrar has cleat-node register networks that span hosts.
type registrar struct{ store *attach.Store }

func (r registrar) node() *control.Client { return control.New(r.store.Path()) }

func (r registrar) Create(ctx context.Context, spec named.NetworkSpec) error {
	n := control.NewNetwork{Name: spec.Name}
	for _, s := range spec.Subnets {
		n.Subnets = append(n.Subnets, s.Prefix)
	}
	var err error
	if n.Spec, err = encode(spec); err != nil {
		return err
	}
	return r.node().CreateNetwork(ctx, n)
}

func (r registrar) Change(ctx context.Context, spec named.NetworkSpec) error {
	text, err := encode(spec)
	if err != nil {
		return err
	}
	return r.node().ChangeNetwork(ctx, spec.Name, text)
}

func (r registrar) Remove(ctx context.Context, network string, force bool) error {
	return r.node().RemoveNetwork(ctx, network, force)
}

func (r registrar) MoreAddresses(ctx context.Context, network string, a netip.Addr) error {
	return r.node().MoreAddresses(ctx, network, a)
}

func encode(spec named.NetworkSpec) (json.RawMessage, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("encode network %s: %w", spec.Name, err)
	}
	return text, nil
}
