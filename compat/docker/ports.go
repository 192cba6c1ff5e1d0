package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"

	"cleat/network/attach"
	"cleat/network/named"
)

// binding is a published port (moby, libnetwork/types.PortBinding).
type binding struct {
	Proto       uint8 // of IP
	IP          string
	Port        uint16
	HostIP      string
	HostPort    uint16 // 0: any
	HostPortEnd uint16 // one of HostPort to HostPortEnd
}

// protocols are those that can be published, by their numbers.
var protocols = map[uint8]string{6: "tcp", 17: "udp", 132: "sctp"}

// publish publishes the ports of a container: this network is the one of its default route now.
func (c *call) publish(ctx context.Context, r *connectivity) (any, error) {
	bindings, err := bindings(r.Options)
	if err != nil {
		return nil, syntaxError{err}
	}
	if len(bindings) == 0 {
		return struct{}{}, nil
	}
	n, e, err := c.joinedEndpoint(r.NetworkID, r.EndpointID)
	if err != nil {
		return nil, err
	}
	var ports []named.Port
	for _, b := range bindings {
		p, err := b.port()
		if err != nil {
			return nil, err
		}
		p.Everywhere = e.Options.Publish == named.Everywhere
		// Docker lets a range of host ports be one that is free. They are tried one after the other.
		for last := max(b.HostPort, b.HostPortEnd); ; p.HostPort++ {
			got, err := named.SetPorts(ctx, c.networks, n.Network, e.container(), append(ports, p))
			if err == nil {
				ports = got.Endpoint.Wanted.Ports
				break
			}
			if !errors.As(err, new(*named.PortTakenError)) || p.HostPort >= last {
				if len(ports) > 0 {
					_, undoErr := named.SetPorts(ctx, c.networks, n.Network, e.container(), nil)
					err = errors.Join(err, undoErr)
				}
				return nil, err
			}
		}
	}
	return struct{}{}, nil
}

// withdraw withdraws all ports of a container: another network is that of its default route now, or none.
func (c *call) withdraw(ctx context.Context, r *connectivity) (any, error) {
	n, e, err := c.joinedEndpoint(r.NetworkID, r.EndpointID)
	if err != nil {
		return struct{}{}, nil // there is nothing to withdraw
	}
	_, err = named.SetPorts(ctx, c.networks, n.Network, e.container(), nil)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return struct{}{}, err
}

func (c *call) joinedEndpoint(network, endpoint string) (*dockerNetwork, *dockerEndpoint, error) {
	e, err := c.store.endpoint(endpoint)
	if err == nil && e == nil {
		err = fmt.Errorf("endpoint %s is unknown", endpoint)
	}
	if err != nil {
		return nil, nil, err
	}
	n, err := c.store.network(network)
	if err == nil && n == nil {
		err = fmt.Errorf("network %s is unknown", network)
	}
	return n, e, err
}

// bindings returns the published ports in the options of a sandbox.
func bindings(options map[string]any) (all []binding, err error) {
	value, ok := options[optionPorts]
	if !ok || value == nil {
		return nil, nil
	}
	text, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", optionPorts, err)
	}
	return all, nil
}

// port returns a binding as a port of ours, the first one of a range.
func (b binding) port() (named.Port, error) {
	p := named.Port{Protocol: protocols[b.Proto], HostPort: b.HostPort, Port: b.Port, Count: 1}
	if p.Protocol == "" {
		return p, &attach.SpecError{Param: "publish", Value: fmt.Sprint(b.Proto), Reason: "only tcp, udp and sctp can be published"}
	}
	if b.HostIP == "" {
		return p, nil
	}
	a, err := netip.ParseAddr(b.HostIP)
	if err != nil {
		return p, &attach.SpecError{Param: "publish", Value: b.HostIP, Reason: "is not an IP address of the host"}
	}
	p.HostAddr = a.Unmap()
	return p, nil
}
