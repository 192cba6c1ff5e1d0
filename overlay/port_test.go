package overlay_test

import (
	"testing"

	"cleat/overlay"
)

func TestCheckPort(t *testing.T) {
	for port, ok := range map[uint16]bool{0: false, 1: true, 4786: true, 4787: false, 4789: false, 4790: true, 6080: false, 7790: true,
		7797: true, 7798: false, 7899: false, 7900: true, 65533: true, 65534: false} {
		if err := overlay.CheckPort(port); (err == nil) != ok {
			t.Errorf("port %d: %v", port, err)
		}
	}
}
