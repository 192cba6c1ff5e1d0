package main

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"cleat/network/named"
	"cleat/overlay"
)

// retryPorts is the time until ports that somebody has on this host are tried again.
const retryPorts = 3 * time.Second

// otherHosts returns the addresses that other hosts have themselves in a network.
func otherHosts(spec named.NetworkSpec, n overlay.NetworkState) (all []netip.Addr) {
	for _, blocks := range n.Remote {
		its := &named.Network{NetworkSpec: spec, Span: &named.Span{Blocks: blocks}}
		all = append(all, its.OwnAddresses()...)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

// publishElsewhere makes this host publish the ports that containers of other hosts publish everywhere.
func (d *dataplane) publishElsewhere(ctx context.Context) error {
	now, err := named.SyncElsewhere(ctx, d.cfg, d.ports)
	if err != nil {
		return err
	}
	d.ports = now
	if len(d.Problems()) > 0 {
		if d.retry == nil {
			d.retry = time.AfterFunc(retryPorts, func() { signal(d.stale) })
		}
		d.retry.Reset(retryPorts)
	}
	return nil
}

// Problems implements overlay.ProblemLister.
func (d *dataplane) Problems() (all []string) {
	for _, p := range d.ports {
		if p.Taken != nil {
			all = append(all, p.String())
		}
	}
	return all
}
