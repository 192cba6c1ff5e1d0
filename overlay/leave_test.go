package overlay

import (
	"testing"
	"time"

	"cleat/overlay/registry"
)

// TestLeavingEnds checks that a host whose process ended while the host was leaving takes part as before when it starts
// again.
func TestLeavingEnds(t *testing.T) {
	h := newHost(t, "a")
	h.create(time.Now())
	h.start()
	must(t, h.node.registry.ChangeHost(t.Context(), "a", func(h *registry.Host) { h.Leaving = true }))
	h.stop()
	h.start()
	waitFor(t, "the record does not say that the host leaves", func() bool {
		r, err := h.node.registry.Host(t.Context(), "a")
		return err == nil && !r.Leaving
	})
}
