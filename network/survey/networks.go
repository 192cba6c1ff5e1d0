package survey

import "net/netip"

// Network is a named network of containers, as its files describe it. Take does not read any:
// the caller adds them to the survey.
type Network struct {
	Name        string         `json:"name"`
	Driver      string         `json:"driver"`
	Device      string         `json:"device,omitempty"` // of the host, or the host's device that it stands on
	Subnets     []netip.Prefix `json:"subnets,omitempty"`
	Internal    bool           `json:"internal,omitempty"`     // it has no way out
	DefaultDeny bool           `json:"default_deny,omitempty"` // what no rule allows is denied
	Rules       []string       `json:"rules,omitempty"`        // "allow …" and "deny …"
	Members     []Member       `json:"containers,omitempty"`
}

// Member is a container on a network.
type Member struct {
	Container string          `json:"container"`
	Host      string          `json:"host,omitempty"` // another one, on which the container is
	Link      string          `json:"link,omitempty"` // its name in the container; "" on another host
	Addresses []netip.Addr    `json:"addresses,omitempty"`
	Aliases   []string        `json:"aliases,omitempty"` // further names on the network
	Ports     []PublishedPort `json:"ports,omitempty"`
}

// PublishedPort is a port of the host, or a range of them, that leads to a container.
type PublishedPort struct {
	Host      string `json:"host"`      // "8080", "127.0.0.1:8080" or "8000-8009"
	Container string `json:"container"` // "80" or "80-89"
	Protocol  string `json:"protocol"`
}

// String returns the port as "8080 → 80", with its protocol unless that is TCP.
func (p PublishedPort) String() string {
	text := p.Host + " → " + p.Container
	if p.Protocol != "tcp" {
		text += "/" + p.Protocol
	}
	return text
}

// MemberLink returns the namespace and the link of a member; nil if the survey has no link of its
// name with one of its addresses, for example because the container does not run.
func (s *Survey) MemberLink(m Member) (*Namespace, *Link) {
	for i := range s.Namespaces {
		n := &s.Namespaces[i]
		for j := range n.Links {
			l := &n.Links[j]
			if l.Name == m.Link && hasAny(l.Addresses, m.Addresses) {
				return n, l
			}
		}
	}
	return nil, nil
}

func hasAny(prefixes []netip.Prefix, addrs []netip.Addr) bool {
	for _, p := range prefixes {
		for _, a := range addrs {
			if p.Addr() == a {
				return true
			}
		}
	}
	return false
}

// NetworksOf returns the networks that some namespaces, by ID, are on: all for the host, and
// all for nil.
func (s *Survey) NetworksOf(only map[uint64]bool) []Network {
	var out []Network
	for _, net := range s.Networks {
		on := only == nil
		for _, n := range s.Namespaces {
			on = on || only[n.ID] && (n.Origin == OriginHost || n.Origin == OriginHere)
		}
		for _, m := range net.Members {
			n, _ := s.MemberLink(m)
			on = on || n != nil && only[n.ID]
		}
		if on {
			out = append(out, net)
		}
	}
	return out
}
