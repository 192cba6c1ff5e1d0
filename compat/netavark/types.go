package netavark

import (
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
)

// network is a network as Podman has it in a file.
type network struct {
	Name         string            `json:"name"`
	ID           string            `json:"id"`
	Driver       string            `json:"driver"`
	Interface    *string           `json:"network_interface,omitempty"` // the bridge, or the parent
	Created      string            `json:"created,omitempty"`
	Subnets      []subnet          `json:"subnets,omitempty"`
	Routes       []route           `json:"routes,omitempty"`
	IPv6         bool              `json:"ipv6_enabled"`
	Internal     bool              `json:"internal"`
	DNS          bool              `json:"dns_enabled"`
	DNSServers   []addr            `json:"network_dns_servers,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
	Options      map[string]string `json:"options,omitempty"`
	IPAM         map[string]string `json:"ipam_options,omitempty"`
	hasDNSServer bool              // network_dns_servers is there, if empty
}

type subnet struct {
	Subnet  prefix      `json:"subnet"`
	Gateway *addr       `json:"gateway,omitempty"`
	Lease   *leaseRange `json:"lease_range,omitempty"`
}

type leaseRange struct {
	Start string `json:"start_ip,omitempty"`
	End   string `json:"end_ip,omitempty"`
}

type route struct {
	To     prefix  `json:"destination"`
	Via    *addr   `json:"gateway,omitempty"`
	Metric *uint32 `json:"metric,omitempty"`
	Type   *string `json:"route_type,omitempty"`
}

// addr and prefix are addresses whose errors have the text that callers know. A prefix may have bits set
// beyond its length.
type (
	addr   struct{ netip.Addr }
	prefix struct{ netip.Prefix }
)

var errAddress = errors.New("invalid IP address syntax")

func (a *addr) UnmarshalText(text []byte) (err error) {
	if a.Addr, err = netip.ParseAddr(string(text)); err != nil || a.Zone() != "" {
		return errAddress
	}
	return nil
}

func (p *prefix) UnmarshalText(text []byte) (err error) {
	if p.Prefix, err = netip.ParsePrefix(string(text)); err != nil {
		return errAddress
	}
	return nil
}

// ipamDriver returns the name of what gives addresses; "" is host-local, Podman itself.
func (n *network) ipamDriver() string { return n.IPAM["driver"] }

func (n *network) device() string {
	if n.Interface == nil {
		return ""
	}
	return *n.Interface
}

// createRequest is the input of create.
type createRequest struct {
	Network network `json:"network"`
	Used    struct {
		Interfaces []string          `json:"interfaces"`
		Names      map[string]string `json:"names"`
		Subnets    []prefix          `json:"subnets"`
	} `json:"used"`
	Options struct {
		Pools []struct {
			Base prefix `json:"base"`
			Size int    `json:"size"`
		} `json:"subnet_pools"`
		InterfaceName *string `json:"default_interface_name"`
		CheckUsed     bool    `json:"check_used_subnets"`
	} `json:"options"`
}

// options is the input of setup and teardown.
type options struct {
	ContainerID   string             `json:"container_id"`
	ContainerName string             `json:"container_name"`
	Hostname      string             `json:"container_hostname"`
	Networks      connections        `json:"networks"`
	Info          map[string]network `json:"network_info"`
	Ports         []portMapping      `json:"port_mappings"`
	DNSServers    []addr             `json:"dns_servers"`
}

// connection is how a container is on a network.
type connection struct {
	Name      string            `json:"name"` // of the network
	Aliases   []string          `json:"aliases,omitempty"`
	Interface string            `json:"interface_name"`
	IPs       []addr            `json:"static_ips,omitempty"`
	MAC       string            `json:"static_mac,omitempty"`
	Options   map[string]string `json:"options,omitempty"`
}

// connections is an array, in the order in which a container gets its links, or an object by name, as
// Podman before 5.4 sends it.
type connections []connection

func (c *connections) UnmarshalJSON(text []byte) error {
	if strings.HasPrefix(strings.TrimSpace(string(text)), "[") {
		return json.Unmarshal(text, (*[]connection)(c))
	}
	var byName map[string]connection
	if err := json.Unmarshal(text, &byName); err != nil {
		return err
	}
	for name, conn := range byName {
		conn.Name = name
		*c = append(*c, conn)
	}
	slices.SortFunc(*c, func(a, b connection) int { // as the links are numbered
		if n := len(a.Interface) - len(b.Interface); n != 0 {
			return n
		}
		return strings.Compare(a.Interface, b.Interface)
	})
	return nil
}

type portMapping struct {
	Port     uint16 `json:"container_port"`
	HostIP   string `json:"host_ip"`
	HostPort uint16 `json:"host_port"`
	Protocol string `json:"protocol"` // several with commas between them
	Range    uint16 `json:"range"`
}

// status is the output of setup for a network.
type status struct {
	Search     []string                  `json:"dns_search_domains"`
	Servers    []netip.Addr              `json:"dns_server_ips"`
	Interfaces map[string]interfaceState `json:"interfaces"`
}

type interfaceState struct {
	MAC     string        `json:"mac_address"`
	Subnets []subnetState `json:"subnets"`
}

type subnetState struct {
	Gateway *netip.Addr  `json:"gateway,omitempty"`
	Address netip.Prefix `json:"ipnet"`
}

// pluginRequest is the input of a plug-in's setup and teardown.
type pluginRequest struct {
	ContainerID   string        `json:"container_id"`
	ContainerName string        `json:"container_name"`
	Ports         []portMapping `json:"port_mappings"`
	Network       network       `json:"network"`
	Connection    connection    `json:"network_options"`
}
