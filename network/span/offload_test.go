package span_test

import (
	"strings"
	"testing"

	"cleat/link"
	"cleat/network/span"
)

// TestSoftware checks that Sync switches offloads off and on again, but none that somebody else has switched off.
func TestSoftware(t *testing.T) {
	tb := newTestbed(t, over4, 2)
	tb.serve()
	h := tb.hosts[0]
	on := func(name string) bool {
		t.Helper()
		l, err := link.Find(h.NS, span.Device)
		must(t, err)
		on, err := l.Offload(name)
		must(t, err)
		return on
	}
	check := func(step string, software span.Software, tx, tso bool) {
		t.Helper()
		c := h.config(tb.hosts...)
		c.Software = software
		h.settle(t, c)
		if on("tx") != tx || on("tso") != tso {
			t.Errorf("%s: checksums %v, want %v; segments %v, want %v", step, on("tx"), tx, on("tso"), tso)
		}
		if now, err := span.SoftwareNow(h.NS); err != nil || now != software {
			t.Errorf("%s: known as %v, %v", step, now, err)
		}
	}
	tb.hosts[1].settle(t, tb.hosts[1].config(tb.hosts...))
	checksums, segments := span.Software{Checksums: true}, span.Software{Segments: true}
	check("at first", span.Software{}, true, true)
	check("checksums", checksums, false, false)
	must(t, reach(h.container.NS, tb.hosts[1], 0))
	if out := run(t, h.NS, "ip", "link", "show", span.Device); !strings.Contains(out, "checksums in software") {
		t.Errorf("ip link shows\n%s", out)
	}
	run(t, h.NS, "ip", "link", "del", span.Device)
	check("a device made anew", checksums, false, false)
	check("segments", segments, true, false)
	check("all again", span.Software{}, true, true)
	l, err := link.Find(h.NS, span.Device)
	must(t, err)
	must(t, l.SetOffload("tx", false))
	check("switched off by somebody else", span.Software{}, false, false)
}
