package spanned

import (
	"errors"
	"net"
	"runtime"
	"testing"
	"time"

	"cleat/lab"
)

// TestClose leaves nothing of a container that has answered.
func TestClose(t *testing.T) {
	lab.Need(t)
	b := &Bed{Cluster: &Cluster{cfg: Config{Dir: t.TempDir()}, driver: new(cleat)}}
	h := &Host{Name: "h", cluster: b.Cluster}
	before := runtime.NumGoroutine()
	c, err := h.answering(t.Context(), "c")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := c.listener.Close(); !errors.Is(err, net.ErrClosed) {
		t.Error("the container still listens")
	}
	for end := time.Now().Add(20 * time.Second); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
	}
	if len(h.containers) > 0 {
		t.Errorf("the host has containers %v", h.containers)
	}
}
