package named

import (
	"context"
	"errors"

	"cleat/network/attach"
)

// NetworkStatus is a network and what exists of it.
type NetworkStatus struct {
	*Network
	Device     string           `json:"device,omitempty"` // of the host
	Containers int              `json:"containers"`
	Missing    []string         `json:"missing,omitempty"`       // in words
	Forwards   *Forwarding      `json:"datapath_used,omitempty"` // only of Inspect
	Taken      map[string]int   `json:"taken,omitempty"`         // addresses in each subnet
	Endpoints  []EndpointStatus `json:"endpoints,omitempty"`     // only of Inspect
	// Of a network that spans hosts: how many containers of other hosts it has, and which; these only of Inspect.
	ElsewhereCount int            `json:"containers_elsewhere,omitempty"`
	Elsewhere      []HostEndpoint `json:"elsewhere,omitempty"`
}

// Forwarding is what forwards the packets of a network: DatapathNft or DatapathBPF, and why.
type Forwarding struct {
	By  string `json:"by"`
	Why string `json:"why"`
}

// EndpointStatus is an endpoint and the state of its link.
type EndpointStatus struct {
	*Endpoint
	State attach.State `json:"state"`
}

// List returns all networks, sorted by name. Files that can't be read are an error beside the
// others.
func List(cfg Config) ([]NetworkStatus, error) {
	store := cfg.store()
	networks, err := store.Networks()
	errs := []error{err}
	var all []NetworkStatus
	for _, n := range networks {
		st, err := store.status(n)
		errs = append(errs, err)
		all = append(all, st)
	}
	return all, errors.Join(errs...)
}

func (s Store) status(n *Network) (NetworkStatus, error) {
	st := NetworkStatus{Network: n, Device: n.device()}
	ids, err := s.endpointIDs(n.Name)
	st.Containers = len(ids)
	if n.Span != nil {
		hosts, hostsErr := s.remoteHosts(n.Name)
		for _, h := range hosts {
			st.ElsewhereCount += len(h.Endpoints)
		}
		err = errors.Join(err, hostsErr)
	}
	if err == nil && n.OnHost() {
		st.Missing, err = attach.CheckHost(s.Store, n.Name, n.hostSide())
	}
	return st, err
}

// Inspect returns a network with its endpoints. What can't be read is an error beside the rest;
// without the network itself the status is nil.
func Inspect(ctx context.Context, cfg Config, name string) (*NetworkStatus, error) {
	store := cfg.store()
	n, err := store.Network(name)
	if err != nil {
		return nil, err
	}
	st, err := store.status(n)
	errs := []error{err}
	if by, why := n.ChooseDatapath(); by != "" {
		st.Forwards = &Forwarding{by, why}
	}
	if n.Span != nil {
		st.Elsewhere, err = store.Elsewhere(name)
		errs = append(errs, err)
	}
	endpoints, err := store.Endpoints(name)
	errs = append(errs, err)
	st.Taken = map[string]int{}
	for _, e := range endpoints {
		if ctx.Err() != nil {
			return &st, context.Cause(ctx)
		}
		es := EndpointStatus{Endpoint: e, State: attach.Missing}
		a, err := store.Attachment(e.AttachmentID)
		if err == nil {
			var got attach.Status
			got, err = attach.StatusOf(store.Store, a)
			es.State = got.State
		}
		errs = append(errs, err)
		st.Endpoints = append(st.Endpoints, es)
		for _, addr := range e.Addresses {
			if sub := n.subnet(addr); sub != nil {
				st.Taken[sub.Prefix.String()]++
			}
		}
	}
	return &st, errors.Join(errs...)
}
