package cni

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"cleat/link"
	"cleat/network/named"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"
)

// config is the configuration of a call: the plug-in's part of a file in /etc/cni/net.d, and what the
// runtime adds.
type config struct {
	types.PluginConf
	Network   string          `json:"network"`   // named network; default: the configuration's name
	Interface string          `json:"interface"` // in the container, instead of CNI_IFNAME
	Publish   string          `json:"publish"`   // named.Everywhere: ports are published on all hosts
	Create    json.RawMessage `json:"create"`    // a network as in a file of `cleat net apply`: it is created if it does not exist
	Runtime   runtimeConfig   `json:"runtimeConfig"`
	Args      struct {
		CNI struct {
			IPs []string `json:"ips"`
			MAC string   `json:"mac"`
		} `json:"cni"`
	} `json:"args"`

	// valid are the attachments that GC must keep; nil: unknown, as the configuration has no list.
	valid *[]types.GCAttachment
	prev  *types100.Result // nil: there is none
}

// runtimeConfig are the values of capabilities (CONVENTIONS.md).
type runtimeConfig struct {
	PortMappings []portMapping   `json:"portMappings"`
	IPs          []string        `json:"ips"`
	MAC          string          `json:"mac"`
	Bandwidth    bandwidth       `json:"bandwidth"`
	DNS          runtimeDNS      `json:"dns"`
	Aliases      json.RawMessage `json:"aliases"` // a list or, from Podman, lists by network
}

type portMapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP"`
}

// bandwidth are rates in bits per second, and bursts in bits; 0: no limit.
type bandwidth struct {
	IngressRate  int64  `json:"ingressRate"`
	IngressBurst uint64 `json:"ingressBurst"`
	EgressRate   int64  `json:"egressRate"`
	EgressBurst  uint64 `json:"egressBurst"`
}

type runtimeDNS struct {
	Servers  []string `json:"servers"`
	Searches []string `json:"searches"`
	Options  []string `json:"options"`
}

// parseConfig parses and checks the configuration of a call.
func parseConfig(text []byte) (*config, error) {
	var c config
	decoder := json.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(&c); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, fmt.Sprintf("read the configuration: %v", err), "want a JSON object on standard input")
	}
	if c.CNIVersion == "" {
		c.CNIVersion = "0.1.0" // what a configuration without a version means (SPEC.md of 0.2.0)
	}
	if err := utils.ValidateNetworkName(c.Name); err != nil {
		return nil, err
	}
	if c.Network == "" {
		c.Network = c.Name
	}
	if c.IPAM.Type != "" {
		return nil, types.NewError(types.ErrUnsupportedField, fmt.Sprintf("ipam.type %q is not supported: networks of cleat give addresses themselves", c.IPAM.Type), "remove it; `cleat net create --subnet` and --ip-range say which addresses are given")
	}
	var lists struct {
		Valid *[]types.GCAttachment `json:"cni.dev/valid-attachments"`
	}
	if err := json.Unmarshal(text, &lists); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, fmt.Sprintf("read cni.dev/valid-attachments: %v", err), "")
	}
	c.valid = lists.Valid
	return &c, c.parsePrevious()
}

// parsePrevious parses the result of the plug-ins before this one.
func (c *config) parsePrevious() error {
	if c.RawPrevResult == nil {
		return nil
	}
	if err := version.ParsePrevResult(&c.PluginConf); err != nil {
		return types.NewError(types.ErrDecodingFailure, err.Error(), "")
	}
	var err error
	if c.prev, err = types100.NewResultFromResult(c.PrevResult); err != nil {
		return types.NewError(types.ErrDecodingFailure, fmt.Sprintf("read prevResult: %v", err), "")
	}
	return nil
}

// parseArgs parses CNI_ARGS: pairs such as "IgnoreUnknown=1;K8S_POD_NAME=web".
func parseArgs(text string) (map[string]string, error) {
	args := map[string]string{}
	for pair := range strings.SplitSeq(text, ";") {
		if pair == "" {
			continue
		}
		name, value, ok := strings.Cut(pair, "=")
		if !ok {
			return nil, types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("CNI_ARGS has %q", pair), "want NAME=VALUE;…")
		}
		args[name] = value
	}
	return args, nil
}

// connection returns how the container is to be connected.
func (c *call) connection() (named.Connection, error) {
	conn := named.Connection{Interface: c.conf.Interface}
	var err error
	if conn.InboundBitsPerSec, conn.OutboundBitsPerSec, err = c.conf.Runtime.Bandwidth.rates(); err != nil {
		return conn, err
	}
	if conn.Addresses, err = c.addresses(); err != nil {
		return conn, err
	}
	if conn.MAC, err = c.mac(); err != nil {
		return conn, err
	}
	if conn.Ports, err = c.conf.Runtime.ports(); err != nil {
		return conn, err
	}
	switch c.conf.Publish {
	case "":
	case named.Everywhere:
		for i := range conn.Ports {
			conn.Ports[i].Everywhere = true
		}
	default:
		return conn, types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("publish is %q, want %q", c.conf.Publish, named.Everywhere), "")
	}
	conn.Aliases, err = c.conf.Runtime.aliases(c.conf.Name)
	return conn, err
}

// addresses returns the requested addresses: by capability, by CNI_ARGS or by the older args.
func (c *call) addresses() ([]netip.Addr, error) {
	words := c.conf.Runtime.IPs
	if len(words) == 0 {
		words = c.conf.Args.CNI.IPs
	}
	if len(words) == 0 && c.args["IP"] != "" {
		words = strings.Split(c.args["IP"], ",")
	}
	var all []netip.Addr
	for _, word := range words {
		a, err := parseAddress(word)
		if err != nil {
			return nil, types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("%q is not an IP address", word), "")
		}
		all = append(all, a.Unmap())
	}
	return all, nil
}

// parseAddress parses an address, with a prefix length or without. The network has the prefix length.
func parseAddress(text string) (netip.Addr, error) {
	if strings.Contains(text, "/") {
		p, err := netip.ParsePrefix(text)
		return p.Addr(), err
	}
	return netip.ParseAddr(text)
}

func (c *call) mac() (link.MAC, error) {
	for _, text := range []string{c.conf.Runtime.MAC, c.conf.Args.CNI.MAC, c.args["MAC"]} {
		if text == "" {
			continue
		}
		m, err := link.ParseMAC(text)
		if err != nil {
			return m, types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("%q is not an Ethernet address", text), "")
		}
		return m, nil
	}
	return link.MAC{}, nil
}

// rates returns the limits of what the container receives and sends. Bursts are chosen by cleat, but one
// without a rate is a mistake: it would limit nothing.
func (b *bandwidth) rates() (inbound, outbound int64, err error) {
	for _, d := range []struct {
		name  string
		rate  int64
		burst uint64
	}{{"ingress", b.IngressRate, b.IngressBurst}, {"egress", b.EgressRate, b.EgressBurst}} {
		if d.burst != 0 && d.rate == 0 {
			return 0, 0, types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("bandwidth: %sBurst is %d, and %sRate is not set", d.name, d.burst, d.name), "")
		}
	}
	return b.IngressRate, b.EgressRate, nil
}

// ports returns the ports to publish. Those without a port of the host are left out: a pod lists every port of
// its containers, and some runtimes pass all of them on. The reference plug-in refuses them.
func (r *runtimeConfig) ports() ([]named.Port, error) {
	var all []named.Port
	for _, m := range r.PortMappings {
		if m.HostPort == 0 {
			continue
		}
		bad := func(reason string) error {
			return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("portMappings: %s", reason), "")
		}
		if m.HostPort < 0 || m.HostPort > 65535 || m.ContainerPort <= 0 || m.ContainerPort > 65535 {
			return nil, bad(fmt.Sprintf("no such port: %d:%d", m.HostPort, m.ContainerPort))
		}
		p := named.Port{Protocol: strings.ToLower(m.Protocol), HostPort: uint16(m.HostPort), Port: uint16(m.ContainerPort), Count: 1}
		if p.Protocol == "" {
			p.Protocol = "tcp"
		}
		if m.HostIP != "" {
			var err error
			if p.HostAddr, err = netip.ParseAddr(m.HostIP); err != nil {
				return nil, bad(fmt.Sprintf("hostIP %q is not an IP address", m.HostIP))
			}
		}
		all = append(all, p)
	}
	return all, nil
}

// aliases returns the capability aliases: a list, or lists by the name of the network.
func (r *runtimeConfig) aliases(network string) ([]string, error) {
	if len(r.Aliases) == 0 || string(r.Aliases) == "null" {
		return nil, nil
	}
	var list []string
	if json.Unmarshal(r.Aliases, &list) == nil {
		return list, nil
	}
	var lists map[string][]string
	if err := json.Unmarshal(r.Aliases, &lists); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, fmt.Sprintf("read aliases: %v", err), "want a list of names")
	}
	return lists[network], nil
}
