package graph

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"cleat/cli/container"
	"cleat/network/named"
	"cleat/network/survey"
)

// addNetworks adds the named networks of the state directory to a survey. What can't be read
// becomes a note.
func addNetworks(s *survey.Survey) {
	cfg, err := container.Config()
	if err == nil {
		store := named.Store{Store: cfg.Store}
		s.Networks, err = networks(store)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.Notes = append(s.Notes, fmt.Sprintf("Not all networks could be read: %v.", err))
	}
}

// networks returns all networks with their containers. Those that can't be read are an error
// beside the others.
func networks(store named.Store) ([]survey.Network, error) {
	all, err := store.Networks()
	errs := []error{err}
	var out []survey.Network
	for _, n := range all {
		net := survey.Network{Name: n.Name, Driver: n.Driver, Device: cmp.Or(n.Device(), n.Parent), Internal: n.Internal, DefaultDeny: n.DefaultDeny, Rules: n.Rules}
		for _, sub := range n.Subnets {
			net.Subnets = append(net.Subnets, sub.Prefix)
		}
		endpoints, err := store.Endpoints(n.Name)
		errs = append(errs, err)
		for _, e := range endpoints {
			net.Members = append(net.Members, member(e))
		}
		if n.Spans {
			elsewhere, err := store.Elsewhere(n.Name)
			errs = append(errs, err)
			for _, e := range elsewhere {
				m := member(e.Endpoint)
				m.Host = e.Host
				net.Members = append(net.Members, m)
			}
		}
		slices.SortStableFunc(net.Members, func(a, b survey.Member) int { return survey.Natural(a.Container, b.Container) })
		out = append(out, net)
	}
	return out, errors.Join(errs...)
}

func member(e *named.Endpoint) survey.Member {
	m := survey.Member{Container: e.Container.ShortName(), Link: e.Interface, Addresses: e.Addresses}
	for _, name := range e.Names {
		if name != strings.ToLower(m.Container) && !strings.HasPrefix(e.Container.ID, name) {
			m.Aliases = append(m.Aliases, name)
		}
	}
	for _, p := range e.Wanted.Ports {
		to, _, _ := strings.Cut(p.String(), "/")
		i := strings.LastIndexByte(to, ':')
		m.Ports = append(m.Ports, survey.PublishedPort{Host: to[:max(i, 0)], Container: to[i+1:], Protocol: p.Protocol})
	}
	return m
}
