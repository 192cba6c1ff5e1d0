package span_test

import (
	"slices"
	"strings"
	"testing"

	"cleat/link"
	"cleat/network/span"
)

// TestUnreadable checks that a device which Sync can't read stays as it is, with the routes to hosts that are reached by
// it: it may work all the same. The device is one of a kind that every kernel has.
func TestUnreadable(t *testing.T) {
	for _, c := range []struct {
		device string
		by     span.By
		off    func(*span.Config) // makes the device one that is not needed
	}{
		{span.Device, span.ByVXLAN, func(c *span.Config) { c.Encrypted = true }},
		{span.GeneveDevice, span.ByGeneve, func(*span.Config) {}},
		{span.WireGuardDevices[0], span.ByWireGuard, func(c *span.Config) { c.WireGuard = span.WireGuard{} }},
	} {
		t.Run(c.device, func(t *testing.T) {
			tb := newTestbed(t, over4, 3)
			t.Cleanup(span.SetKind(c.device, "bridge"))
			h, o := tb.hosts[0], tb.hosts[1]
			run(t, h.NS, "sh", "-ec", "ip link add "+c.device+" type bridge; ip link set "+c.device+" up")
			for _, other := range tb.hosts[1:] {
				run(t, h.NS, "ip", "route", "add", other.blocks[0].String(), "dev", c.device, "metric", "7790", "proto", "193")
			}
			before := strings.Fields(run(t, h.NS, "ip", "link", "show", c.device))[0]
			config := h.config(o) // the third host is gone
			config.Hosts[0].By = c.by
			config.WireGuard = span.WireGuard{Keys: [span.Slots]link.WireGuardKey{newKey(t)}, Port: wireGuardPort}
			for range 2 {
				changed, err := span.Sync(h.NS, config)
				if err == nil {
					t.Error("Sync can read the device")
				}
				if after := strings.Fields(run(t, h.NS, "ip", "link", "show", c.device))[0]; after != before {
					t.Errorf("the device had number %s, and has %s; changed: %q", before, after, changed)
				}
				if got := h.blocksBy(t, c.device); !slices.Equal(got, []string{o.blocks[0].String()}) {
					t.Errorf("routes by %s: %q; changed: %q", c.device, got, changed)
				}
			}
			config.Hosts = nil
			c.off(&config)
			if _, err := span.Sync(h.NS, config); err != nil && c.by == span.ByWireGuard {
				t.Error(err)
			}
			if out := run(t, h.NS, "ip", "link"); strings.Contains(out, c.device+":") {
				t.Errorf("the device that is not needed stays:\n%s", out)
			}
		})
	}
}

// blocksBy returns the prefixes of IPv4 routes by a device that are Sync's.
func (h *host) blocksBy(t *testing.T, device string) (all []string) {
	t.Helper()
	for _, line := range strings.Split(run(t, h.NS, "ip", "-4", "route", "show", "dev", device, "proto", "193"), "\n") {
		if f := strings.Fields(line); len(f) > 0 {
			all = append(all, f[0])
		}
	}
	slices.Sort(all)
	return all
}
