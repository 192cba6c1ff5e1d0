package tunnel

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestEmptySockets checks that a silent path counts as read when all sockets are polled, and a
// path with waiting packets does not.
func TestEmptySockets(t *testing.T) {
	silent, _ := loopback(t, false)
	busy, _ := loopback(t, false)
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(wake)
	for _, fd := range [...]int{silent[0], silent[1], busy[0], busy[1]} {
		defer unix.Close(fd)
	}
	if _, err := unix.Write(busy[1], []byte{1}); err != nil {
		t.Fatal(err)
	}
	in := newInbound(&Tunnel{startedAt: time.Now().Add(-time.Second), wakeIn: wake, paths: [MaxPaths]*path{{id: 0, fd: silent[0]}, {id: 1, fd: busy[0]}, {id: 2, fd: silent[1], listeners: [2]int{busy[0]}}, {id: 3, fd: busy[0], listeners: [2]int{silent[1]}}}})
	in.updatePolls()
	before := in.t.now()
	in.wait()
	for id, fresh := range []bool{true, false, true, false} {
		if got := in.checkedUntil[id]; got >= before != fresh {
			t.Errorf("path %d: read until %v, polled at %v", id, got, before)
		}
	}
}
