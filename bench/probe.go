package bench

import (
	"context"
	"fmt"
	"strings"
	"time"

	"cleat/bench/cell"
	"cleat/bench/wiring"
	"cleat/traffic"
)

// probe is the result of the path MTU probe.
type probe = traffic.Result

// NetworkFacts are what is known of one network beside its samples.
type NetworkFacts struct {
	LinkMTU int      `json:"link_mtu_bytes,omitempty"` // what the client's kernel assumes
	PathMTU int      `json:"path_mtu_bytes,omitempty"` // the largest packet that arrives in one piece
	Notes   []string `json:"notes,omitempty"`
}

// probeTimeout bounds the path MTU probe, which itself ends within two seconds.
const probeTimeout = 10 * time.Second

// probePath sends full-size packets over the first pair before anything is
// measured.
func (b *testbed) probePath(ctx context.Context) error {
	s, err := b.serve(ctx, 0, engineCleat, nil)
	if err != nil {
		return err
	}
	p := b.Pairs[0]
	args := append([]string{string(traffic.Probe), p.Dial.String(), "--json"}, s.controlFlag()...)
	found, err := client{pair: p, args: args, timeout: probeTimeout}.run(ctx)
	b.setProbe(found)
	if err != nil {
		return fmt.Errorf("no traffic passes: %w", err)
	}
	// A path may not forward datagrams and carry streams all the same.
	if why := b.probe.ProbeError; why != "" && !strings.HasPrefix(why, "udp:") && !b.probe.BlackHole {
		return fmt.Errorf("no traffic passes: %s", why)
	}
	return nil
}

func (b *testbed) setProbe(found probe) {
	b.probe = found
	b.facts.LinkMTU, b.facts.PathMTU = found.LinkMTU, found.PathMTU
}

// warnings returns what every sample of the testbed must carry.
func (b *testbed) warnings() []cell.Warning {
	var out []cell.Warning
	for _, text := range b.probe.Warnings {
		out = append(out, warningOf(text))
	}
	if b.job.Cell.Factors["gso"] == "on" && wiring.CrossesWhole(b.job.Cell.Network) {
		out = append(out, cell.Warning{Code: "never-segmented", Text: "packets of UDP_SEGMENT are never segmented here: they cross whole"})
	}
	return out
}
