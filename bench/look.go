package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"cleat/bench/wiring"
	"cleat/link"
	"cleat/traffic"
)

// probe is what the path MTU probe found.
type probe = traffic.Result

// NetworkFacts are what is known of one wiring beside its samples.
type NetworkFacts struct {
	LinkMTU      int      `json:"link_mtu_bytes,omitempty"`     // what the client's kernel believes
	PathMTU      int      `json:"path_mtu_bytes,omitempty"`     // what really arrives, in one piece
	NominalSpeed int      `json:"nominal_mbit_per_s,omitempty"` // what ethtool says of the client's link
	Notes        []string `json:"notes,omitempty"`
}

// lookAround reads what the client's device says of itself.
func (b *testbed) lookAround() NetworkFacts {
	facts := NetworkFacts{Notes: b.Notes}
	p := b.Pairs[0]
	if p.ClientNode == nil || p.Device == "" {
		return facts
	}
	// It is not worth failing for: a fact that can't be read is left out.
	if l, err := link.Find(p.ClientNode.NS, p.Device); err == nil {
		facts.NominalSpeed, _ = l.NominalSpeed()
	}
	return facts
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
	args := []string{string(traffic.Probe), p.Dial.String(), "--json"}
	if s.control != "" {
		args = append(args, "--control", "unix:"+s.control)
	}
	found, err := client{pair: p, args: args, timeout: probeTimeout}.run(ctx)
	b.take(found)
	if err != nil {
		return fmt.Errorf("no traffic passes: %w", err)
	}
	// Datagrams alone may be lost to a path that does not forward them.
	if why := b.probe.ProbeError; why != "" && !strings.HasPrefix(why, "udp:") && !b.probe.BlackHole {
		return fmt.Errorf("no traffic passes: %s", why)
	}
	return nil
}

// take keeps what a probe found.
func (b *testbed) take(found probe) {
	b.probe = found
	b.facts.LinkMTU, b.facts.PathMTU = found.LinkMTU, found.PathMTU
}

// warnings are what every sample of the bed must carry.
func (b *testbed) warnings() []string {
	out := slices.Clone(b.probe.Warnings)
	if b.facts.NominalSpeed > 0 && slices.Contains([]string{"tun", "tap"}, b.job.Cell.Network) {
		out = append(out, fmt.Sprintf("ethtool calls this device a %d Mbit/s link", b.facts.NominalSpeed))
	}
	if b.job.Cell.Factors["gso"] == "on" && wiring.CrossesWhole(b.job.Cell.Network) {
		out = append(out, "packets of UDP_SEGMENT are never really segmented here: they cross whole")
	}
	return out
}
