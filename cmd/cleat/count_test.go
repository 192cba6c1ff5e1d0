package main

import "testing"

func TestCount(t *testing.T) {
	for want, got := range map[string]string{
		"0 networks":    count(0, "network"),
		"1 network":     count(1, "network"),
		"2 networks":    count(uint64(2), "network"),
		"1 address":     count(uint32(1), "address"),
		"3 addresses":   count(3, "address"),
		"1 packet":      plural("1", "packet"),
		"1.00K packets": plural("1.00K", "packet"),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
