package named

import (
	"slices"
	"strings"

	"cleat/network/attach"
)

// HostEndpoint is a container of another host on a network. It has no link here.
type HostEndpoint struct {
	Host string `json:"host"`
	*Endpoint
}

// hostOf returns the other host on which a container of a network is; "" if there is none. ref is the container as a
// file of Apply has it, or one of its names.
func (s Store) hostOf(network, ref string) (string, error) {
	hosts, err := s.remoteHosts(network)
	for _, h := range hosts {
		if slices.ContainsFunc(h.Endpoints, func(e RemoteEndpoint) bool {
			_, short, _ := strings.Cut(e.Container, ":")
			return e.Container == ref || short == ref || slices.Contains(e.Names, ref)
		}) {
			return h.Host, nil
		}
	}
	return "", err
}

// Elsewhere returns the containers of other hosts on a network that spans hosts, by their hosts.
func (s Store) Elsewhere(network string) (all []HostEndpoint, err error) {
	hosts, err := s.remoteHosts(network)
	for _, h := range hosts {
		for i := range h.Endpoints {
			e := h.Endpoints[i].endpoint(network)
			if engine, name, ok := strings.Cut(e.Container.Name, ":"); ok {
				e.Container = attach.Container{Engine: engine, Name: name, Ref: e.Container.Name}
			}
			e.Wanted.Ports = h.Endpoints[i].Published
			all = append(all, HostEndpoint{h.Host, e})
		}
	}
	return all, err
}
