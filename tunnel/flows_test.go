package tunnel

import (
	"testing"
	"time"
)

// TestFlowTable checks which flows are bulk, and which paths they fill first.
func TestFlowTable(t *testing.T) {
	const anchored, later, rtt = 0b011, 0b111, 20 * time.Millisecond
	var flows flowTable
	if got := flows.add(0, 1, 1, false, rtt, anchored); got != 0 {
		t.Errorf("a flow's first packet, which opens nothing, goes to %b", got)
	}
	if got := flows.add(0, 2, 1, true, rtt, anchored); got != anchored {
		t.Errorf("a packet that opens a connection goes to %b, want %b", got, anchored)
	}
	for range bulkPackets {
		flows.add(time.Second, 2, 1, false, rtt, later)
	}
	if got := flows.add(flowWindow+time.Second, 2, 1, false, rtt, later); got != anchored {
		t.Errorf("a bulk flow goes to %b, want the paths that it began with, %b", got, anchored)
	}
	if got := flows.add(3*flowWindow, 2, 1, false, rtt, later); got != 0 {
		t.Errorf("a flow that has sent little goes to %b", got)
	}
	if got := flows.add(3*flowWindow, 2, bulkPackets, false, rtt, later); got != later {
		t.Errorf("a flow that sends much again goes to %b, want %b", got, later)
	}
	flows.add(0, 3, 10, true, time.Second, anchored)
	if got := flows.add(7*time.Second, 3, 1, false, time.Second, anchored); got != anchored {
		t.Errorf("seven round trips after its SYN, a flow goes to %b", got)
	}
}
