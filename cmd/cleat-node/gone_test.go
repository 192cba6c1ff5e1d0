package main

import (
	"net/netip"
	"slices"
	"testing"

	"cleat/overlay/registry"
)

// TestLeftBehind follows hosts that change their addresses, and swap them.
func TestLeftBehind(t *testing.T) {
	r := &routing{had: map[string]netip.Addr{}, gone: map[netip.Addr]bool{}}
	at := func(a, b byte) []registry.Host {
		addr := func(n byte) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, n}) }
		return []registry.Host{{Name: "a", Address: addr(a)}, {Name: "b", Address: addr(b)}}
	}
	for _, c := range []struct {
		name  string
		hosts []registry.Host
		want  []byte
	}{
		{"at first", at(1, 2), nil},
		{"a moves", at(3, 2), []byte{1}},
		{"b moves, too", at(3, 4), []byte{1, 2}},
		{"a gets b's", at(2, 4), []byte{1, 3}},
		{"they swap", at(4, 2), []byte{1, 3}},
		{"b is not there", at(4, 2)[:1], []byte{1, 3}},
		{"back", at(1, 2), []byte{3, 4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []byte
			for _, a := range r.leftBehind(c.hosts) {
				got = append(got, a.As4()[3])
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("left behind %d, want %d", got, c.want)
			}
		})
	}
}
