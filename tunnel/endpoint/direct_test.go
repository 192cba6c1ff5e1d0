package endpoint_test

import (
	"context"
	"testing"
	"time"

	"cleat/lab/labtest"
)

// TestDirect sends a stream over clean paths. Soon its packets pass no process. A path is lost, and returns; nothing of the
// stream is missing.
func TestDirect(t *testing.T) {
	if !labtest.InRoot(t) {
		return
	}
	if !labtest.KernelAtLeast(t, 6, 6) {
		t.Skip("the kernel has no tcx")
	}
	b := newTestbed(t, topology{outside: []int{4, 4, 4}})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	s := connect(t, b.ends[0].node, b.ends[1].node, innerAddr(1, 4))
	done := make(chan error, 1)
	go func() { _, err := s.send(ctx, 1, 0); done <- err }()
	isDirect := func(on bool) {
		t.Helper()
		eventually(t, 30*time.Second, func() bool { return b.ends[0].status().Direct.On == on }, func() string {
			return "direct: " + b.ends[0].command("status")
		})
	}
	isDirect(true)
	before := b.ends[0].status().Direct.SentBytes
	b.blackhole(1, true)
	b.waitPaths(10*time.Second, 0, 2)
	b.blackhole(1, false)
	b.waitPaths(10*time.Second, 0, 1, 2)
	isDirect(true)
	eventually(t, 10*time.Second, func() bool { return b.ends[0].status().Direct.SentBytes > before+100<<20 }, func() string { return "too little goes directly" })
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
