package named

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"cleat/network/attach"
	"cleat/network/ipam"
)

// CheckEndpoint returns what is wrong with an endpoint: its network, its link, its claims or its rules; nil if
// nothing is. Of the link's routes it checks those that listed reports. Unlike Check it finds what was removed
// from a link that still exists.
func CheckEndpoint(ctx context.Context, cfg Config, e *Endpoint, listed func(attach.Route) bool) (*Difference, error) {
	s, n, err := openNetwork(cfg, e.Network)
	if err != nil {
		return nil, err
	}
	defer s.close()
	wrong := &Difference{Network: n.Name, Container: e.Container.ShortName()}
	if fault, err := s.hostFault(n); fault != nil || err != nil {
		return fault, err
	}
	for _, check := range []func() (string, error){
		func() (string, error) { return s.checkLink(ctx, e), nil },
		func() (string, error) { return s.claimFault(n, e) },
		func() (string, error) { return s.ruleFault(n, e) },
	} {
		if wrong.What, err = check(); wrong.What != "" || err != nil {
			return wrong, err
		}
	}
	a, err := s.store.Attachment(e.AttachmentID)
	if err != nil {
		return nil, err
	}
	lost, err := attach.Lost(s.store.Store, a, listed)
	if err != nil || len(lost) == 0 {
		return nil, err
	}
	wrong.What = "somebody removed " + strings.Join(lost, ", ")
	wrong.Remedy = "Disconnect the container and connect it again: that restores the link"
	return wrong, nil
}

// HostFault returns what of a network's devices and addresses the host lacks; nil if nothing. It takes no lock.
func HostFault(cfg Config, n *Network) (*Difference, error) {
	s, err := open(cfg)
	if err != nil {
		return nil, err
	}
	defer s.close()
	return s.hostFault(n)
}

func (s *session) hostFault(n *Network) (*Difference, error) {
	if !n.OnHost() {
		what, err := s.checkParentUp(n)
		if what == "" || err != nil {
			return nil, err
		}
		return &Difference{Network: n.Name, What: what, Remedy: "`ip link` shows the devices of the host"}, nil
	}
	missing, err := attach.CheckHost(s.store.Store, n.Name, n.hostSide())
	if len(missing) == 0 || err != nil {
		return nil, err
	}
	return &Difference{Network: n.Name, What: "missing on the host: " + missing[0]}, nil
}

// claimFault describes which of an endpoint's addresses is not marked as taken; "" if all are.
func (s *session) claimFault(n *Network, e *Endpoint) (string, error) {
	for _, a := range e.Addresses {
		if n.subnet(a) == nil {
			continue // leased
		}
		owner, err := s.pool(n).Owner(a)
		if err != nil {
			return "", err
		}
		if owner != e.owner() {
			return fmt.Sprintf("its address %s is not marked as taken", a), nil
		}
	}
	return "", nil
}

// ruleFault describes what the kernel lacks of the rules of an endpoint and its network; "" if nothing.
func (s *session) ruleFault(n *Network, e *Endpoint) (string, error) {
	want := n.rulesWith([]*Endpoint{e})
	if len(want.Networks) == 0 && len(want.Ports) == 0 {
		return "", nil
	}
	lacks, err := s.Rules.Lacks(want)
	if err != nil || len(lacks) == 0 {
		return "", err
	}
	return "rules: " + lacks[0].String(), nil
}

// FreeAddress returns an *ipam.FullError if a subnet of a network has no address left for a further container.
// Addresses of containers that their engines have forgotten are free (ReleaseForgotten). It takes no lock.
func FreeAddress(cfg Config, n *Network) error {
	s, err := open(cfg)
	if err != nil {
		return err
	}
	defer s.close()
	if n.Manager != "" {
		return nil // its engine chooses
	}
	pool, err := s.poolForAll(n)
	if err != nil {
		return err
	}
	for _, sub := range n.Subnets {
		err := pool.Free(sub.Prefix)
		if !errors.As(err, new(*ipam.FullError)) {
			if err != nil {
				return err
			}
			continue
		}
		endpoints, listErr := s.store.Endpoints(n.Name)
		if listErr != nil {
			return listErr
		}
		for _, e := range endpoints {
			if forgotten, _, err := s.isForgotten(e); err == nil && forgotten {
				return nil
			}
		}
		return s.explain(n.Name, err)
	}
	return nil
}
