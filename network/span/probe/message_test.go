package probe

import (
	"net/netip"
	"testing"
)

func TestTrialPacket(t *testing.T) {
	for _, c := range []struct{ name, from, to string }{
		{"IPv4", "10.64.0.1", "10.64.0.65"},
		{"IPv6", "2001:db8:64::1", "2001:db8:64:1::1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := Way{netip.MustParseAddr(c.from), netip.MustParseAddr(c.to)}
			m := message{Kind: trial, Received: has4, Own: number{1}, Echo: number{2}}
			b := trialPacket(w, 7790, m)
			if len(b) > maxPacket {
				t.Errorf("a packet has %d bytes, more than %d", len(b), maxPacket)
			}
			m.Magic = magic
			if got, from, ok := parseTrial(b, 7790); !ok || got != m || from != w.From {
				t.Errorf("parsed as %+v of %s, %v", got, from, ok)
			}
			if _, _, ok := parseTrial(b, 7791); ok {
				t.Error("a packet to another port is accepted")
			}
			for i := range b {
				if _, _, ok := parseTrial(b[:i], 7790); ok {
					t.Errorf("the first %d bytes are accepted", i)
				}
			}
		})
	}
}

// FuzzParse parses what strangers may send.
func FuzzParse(f *testing.F) {
	for _, w := range []Way{{netip.MustParseAddr("10.64.0.1"), netip.MustParseAddr("10.64.0.65")}, {netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")}} {
		f.Add(trialPacket(w, 7790, message{Kind: trial}))
	}
	f.Add(message{Kind: hello}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, ok := parse(b); ok && len(b) < messageBytes {
			t.Errorf("%d bytes are %+v", len(b), m)
		}
		if m, from, ok := parseTrial(b, 7790); ok && (m.Kind != trial || !from.IsValid()) {
			t.Errorf("accepted %+v of %s", m, from)
		}
	})
}
