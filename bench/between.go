package bench

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"cleat/bench/catalog"
	"cleat/bench/experiment"
	"cleat/bench/wiring"
	"cleat/netns"
)

// Between is Run for an existing path between namespaces a and b, in both directions
// if b can reach a by itself. cfg.Experiment must measure catalog.ExistingPath only;
// the direction of its cells says which way. The address is b's as seen from a; zero
// means to find one.
func Between(ctx context.Context, cfg Config, a, b *netns.NS, address netip.Addr) error {
	there, err := wiring.Existing(ctx, a, b, address)
	if err != nil {
		return err
	}
	paths := map[string]*wiring.Network{"outbound": there}
	// A path with address translation works one way only.
	if back, err := wiring.Existing(ctx, b, a, netip.Addr{}); err == nil {
		paths["inbound"] = back
	} else {
		cfg.Experiment.Groups = slices.Clone(cfg.Experiment.Groups)
		for i := range cfg.Experiment.Groups {
			cfg.Experiment.Groups[i].Directions = []string{"outbound"}
		}
	}
	return start(ctx, cfg, func(r *run) error {
		for _, j := range r.Experiment.Jobs() {
			if n := paths[j.Cell.Direction]; n != nil && r.testbeds.index(j) < 0 {
				if err := r.testbeds.add(ctx, j, n); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// ExistingPath returns the experiment of Between: streams and request/response.
func ExistingPath() experiment.Experiment {
	return experiment.Experiment{
		Name: "between", Title: "a path that exists already", Repeat: 10, Warmup: 1,
		Groups: []experiment.Group{{
			Networks:   []string{catalog.ExistingPath},
			Directions: []string{"outbound", "inbound"},
			Work: []experiment.Work{
				{Kind: experiment.TCP, Duration: time.Second},
				{Kind: experiment.RR, Duration: 500 * time.Millisecond},
			},
		}},
	}
}
