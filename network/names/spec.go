package names

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"cleat/internal/dnsname"
)

// Network is a network with all its names.
type Network struct {
	// Name is unique. It consists of DNS labels, usually one.
	Name string `json:"name"`
	// Domain is the domain of the network's names; "" means Name. Names below it that do not
	// exist are never forwarded. So a network that is called like a public domain ("dev")
	// should have another domain.
	Domain string `json:"domain,omitempty"`
	// Subnets are the addresses of the network. No reverse query for them is forwarded.
	Subnets []netip.Prefix `json:"subnets,omitempty"`
	// AllReverse answers a reverse query with the name and all aliases of an endpoint, without the domain.
	AllReverse bool `json:"all_reverse,omitempty"`
	// NoForward answers queries for foreign names with NXDOMAIN.
	NoForward bool `json:"no_forward,omitempty"`
	// SingleLabels forwards unknown names of one label.
	SingleLabels bool `json:"single_labels,omitempty"`
	// Upstream are the servers for foreign names; none means those in the host's resolv.conf.
	Upstream  []netip.AddrPort `json:"upstream,omitempty"`
	Endpoints []Endpoint       `json:"endpoints,omitempty"`
}

// Endpoint is what names of a network lead to, such as a container.
type Endpoint struct {
	ID      string       `json:"id"`   // unique in the network, chosen by the caller; "" means Name
	Name    string       `json:"name"` // need not be unique
	Aliases []string     `json:"aliases,omitempty"`
	Addrs   []netip.Addr `json:"addrs,omitempty"` // without zones
	Ports   []Port       `json:"ports,omitempty"`
}

// Port is a port at which an endpoint serves clients.
type Port struct {
	Name     string `json:"name,omitempty"`     // of the service, such as "http"; "": the port is found by its number only
	Protocol string `json:"protocol,omitempty"` // "" means "tcp"
	Port     uint16 `json:"port"`
}

// Change is a change of a network's endpoints. All of it is in force at once.
type Change struct {
	Delete []string   `json:"delete,omitempty"` // IDs; unknown ones are ignored
	Set    []Endpoint `json:"set,omitempty"`    // added, or in place of those with the same ID
}

// Socket describes a pair of sockets, one of UDP and one of TCP.
type Socket struct {
	// ID is unique, chosen by the caller: the network's name for a gateway, or a container's.
	ID string `json:"id"`
	// Networks are those whose names are visible, in the order of search. At least one.
	Networks []string `json:"networks"`
	// OnlyOurs refuses queries for names that none of the networks has, instead of forwarding
	// them or denying that the names exist. The resolvers of glibc, musl and Go then take the
	// answer of the next server in the client's resolv.conf, which has to know the others.
	OnlyOurs bool `json:"only_ours,omitempty"`
}

// checked returns a copy of n in canonical form: names in lower case, no empty domain and IDs,
// no endpoints.
func (n Network) checked() (Network, error) {
	n.Name, n.Domain = dnsname.Fold(n.Name), dnsname.Fold(n.Domain)
	if n.Domain == "" {
		n.Domain = n.Name
	}
	for _, name := range []string{n.Name, n.Domain} {
		if _, err := wireName(name); err != nil {
			return n, fmt.Errorf("network %q: %w", n.Name, err)
		}
	}
	n.Subnets = slices.Clone(n.Subnets)
	for i, p := range n.Subnets {
		if !p.IsValid() {
			return n, fmt.Errorf("network %q: invalid subnet", n.Name)
		}
		n.Subnets[i] = p.Masked()
	}
	for _, a := range n.Upstream {
		if !a.IsValid() || a.Port() == 0 {
			return n, fmt.Errorf("network %q: server %q: want an address and a port", n.Name, a)
		}
	}
	n.Endpoints = nil
	return n, nil
}

// checked returns a copy of e in canonical form: with an ID, and without duplicate names and
// addresses.
func (e Endpoint) checked(domain string) (Endpoint, error) {
	if e.ID == "" {
		e.ID = e.Name
	}
	e.Name = dnsname.Fold(e.Name)
	e.Aliases, e.Addrs, e.Ports = slices.Clone(e.Aliases), slices.Clone(e.Addrs), slices.Clone(e.Ports)
	for i := range e.Aliases {
		e.Aliases[i] = dnsname.Fold(e.Aliases[i])
	}
	slices.Sort(e.Aliases)
	e.Aliases = slices.DeleteFunc(slices.Compact(e.Aliases), func(alias string) bool { return alias == e.Name })
	for _, name := range append([]string{e.Name}, e.Aliases...) {
		if _, err := wireName(name + "." + domain); name == "" || err != nil {
			return e, fmt.Errorf("endpoint %q: name %q: want labels of 1 to 63 visible characters, and at most 255 bytes with the domain", e.ID, name)
		}
	}
	for i, a := range e.Addrs {
		if !a.IsValid() || a.Zone() != "" {
			return e, fmt.Errorf("endpoint %q: address %q: want one without a zone", e.ID, a)
		}
		e.Addrs[i] = a.Unmap()
	}
	slices.SortFunc(e.Addrs, netip.Addr.Compare)
	e.Addrs = slices.Compact(e.Addrs)
	for i, p := range e.Ports {
		if p.Protocol == "" {
			p.Protocol = "tcp"
		}
		p.Name, p.Protocol = dnsname.Lower(p.Name), dnsname.Lower(p.Protocol)
		if !isLabel("_"+p.Name) || !isLabel("_"+p.Protocol) || p.Port == 0 {
			return e, fmt.Errorf("endpoint %q: port %+v: want a name and a protocol of at most 62 characters, and a number above 0", e.ID, p)
		}
		e.Ports[i] = p
	}
	return e, nil
}

// labels returns the first labels of the SRV names of a port.
func (p Port) labels() []string {
	number := strconv.Itoa(int(p.Port))
	if p.Name == "" || p.Name == number {
		return []string{"_" + number + "._" + p.Protocol}
	}
	return []string{"_" + p.Name + "._" + p.Protocol, "_" + number + "._" + p.Protocol}
}
