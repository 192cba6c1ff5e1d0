package main

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"cleat/network/named"
	"cleat/overlay"
	"cleat/overlay/registry"
)

// retryPorts is the time until ports that somebody has on this host are tried again.
const retryPorts = 3 * time.Second

// portsOfOthers are ports that containers of other hosts publish everywhere. Only Apply and SetEndpoints use them.
type portsOfOthers struct {
	ports []*named.ElsewherePort
	from  map[string]bool // networks and hosts with such containers
	retry *time.Timer     // of ports that are taken here; nil: there were none yet
}

// otherHosts returns the addresses that other hosts have themselves in a network.
func otherHosts(spec named.NetworkSpec, n overlay.NetworkState) (all []netip.Addr) {
	for _, blocks := range n.Remote {
		its := &named.Network{NetworkSpec: spec, Span: &named.Span{Blocks: blocks}}
		all = append(all, its.OwnAddresses()...)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

// noteEverywhere notes whether containers of another host publish ports everywhere: only then anything is to be done.
func (d *dataplane) noteEverywhere(network, host string, all []registry.Endpoint) {
	key := network + "/" + host
	delete(d.others.from, key)
	if slices.ContainsFunc(all, func(e registry.Endpoint) bool {
		return slices.ContainsFunc(e.Ports, func(p registry.Port) bool { return p.All })
	}) {
		if d.others.from == nil {
			d.others.from = map[string]bool{}
		}
		d.others.from[key] = true
	}
}

// publishElsewhere makes this host publish the ports that containers of other hosts publish everywhere.
func (d *dataplane) publishElsewhere(ctx context.Context) error {
	if len(d.others.from) == 0 && len(d.others.ports) == 0 {
		return nil
	}
	now, err := named.SyncElsewhere(ctx, d.cfg, d.others.ports)
	if err != nil {
		return err
	}
	if d.others.ports = now; len(now) == 0 {
		clear(d.others.from)
	}
	if len(d.Problems()) > 0 {
		if d.others.retry == nil {
			d.others.retry = time.AfterFunc(retryPorts, func() { signal(d.stale) })
		}
		d.others.retry.Reset(retryPorts)
	}
	return nil
}

// Problems implements overlay.ProblemLister.
func (d *dataplane) Problems() (all []string) {
	for _, p := range d.others.ports {
		if p.Taken != nil {
			all = append(all, p.String())
		}
	}
	return all
}
