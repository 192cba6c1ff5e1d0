package main

import (
	"strings"
	"testing"
	"time"
)

// Warm-up makes the networks and is slower than what follows: the time left is
// the estimate's until a block that counts is done.
func TestProgressTimeLeft(t *testing.T) {
	slow := time.Now().Add(-10 * time.Minute)
	for _, tt := range []struct {
		name string
		p    progress
		want string
	}{
		{"at the beginning", progress{total: 100, done: 1, block: 0, began: slow}, "1m40s left"},
		{"in a slow warm-up", progress{total: 100, done: 9, block: 0, began: slow}, "1m32s left"},
		{"in the first block", progress{total: 100, done: 15, block: 1, began: slow, countedFrom: slow, countedDone: 11}, "1m26s left"},
		{"in the second block", progress{total: 100, done: 21, block: 2, began: slow,
			countedFrom: time.Now().Add(-40 * time.Second), countedDone: 11}, "5m20s left"},
		{"nothing to do", progress{}, "0s left"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.p.estimate = time.Duration(tt.p.total) * time.Second
			if got := strings.TrimSpace(tt.p.left()); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0 networks", 1: "1 network", 2: "2 networks"} {
		if got := count(n, "network"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
