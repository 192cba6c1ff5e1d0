package endpoint_test

import (
	"context"
	"io"
	"os"
	"testing"
	"time"

	"cleat/lab"
	"cleat/lab/labtest"
)

// needRoot reports whether the test runs in a lab that root has made: the kernel loads BPF programs for its own root
// alone. If not, it has run the test in such a lab, or skips it.
func needRoot(t *testing.T) bool {
	t.Helper()
	lab.Need(t)
	if f, _ := lab.Inside(); f == lab.Root {
		return true
	}
	self, err := os.Executable()
	must(t, err)
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	p, err := (lab.Host{}).Start(lab.Command{Args: []string{"env", lab.TestFlavour + "=" + string(lab.Root), self, "-test.v", "-test.run", "^" + t.Name() + "$"}, Stdout: w, Stderr: w})
	w.Close()
	must(t, err)
	out, err := io.ReadAll(r)
	must(t, err)
	if err := p.Wait(); err != nil {
		t.Errorf("in a lab of root: %v\n%s", err, out)
	}
	t.Logf("%s", out)
	return false
}

// TestDirect sends a stream over clean paths. Soon its packets pass no process. A path is lost, and returns; nothing of the
// stream is missing.
func TestDirect(t *testing.T) {
	if !needRoot(t) {
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
