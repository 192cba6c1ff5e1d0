package tunneltest

import (
	"testing"

	"cleat/packet"

	"golang.org/x/sys/unix"
)

// TestDeviceRefusesNothing writes a burst of packets while the host reads nothing.
func TestDeviceRefusesNothing(t *testing.T) {
	d, err := NewDevice()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	b := make([]byte, packet.VNetHdrBytes+236)
	for i := range 300 {
		if _, err := unix.Write(d.FD(), b); err != nil {
			t.Fatalf("packet %d: %v", i, err)
		}
	}
}
