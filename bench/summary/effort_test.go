package summary

import (
	"testing"

	"cleat/bench/cell"
)

// TestForeignTimeIsNoCost checks that the time of other programs is not in the cost of a network, unless they
// may carry its traffic. Slow networks would suffer the most.
func TestForeignTimeIsNoCost(t *testing.T) {
	cpu := cell.CPU{User: 0.25, System: 0.5, SoftIRQ: 0.25, Foreign: 0.25, ForeignUser: 0.125, Wall: 1}
	for _, tt := range []struct {
		name, network string
		cpu           cell.CPU
		want          cell.CoresPerGbit
	}{
		{"foreign", "veth", cpu, cell.CoresPerGbit{User: 0.125, System: 0.375, SoftIRQ: 0.25}},
		{"of an older version", "veth", cell.CPU{User: 0.25, System: 0.125, SoftIRQ: 0.25, Foreign: 0.25, Wall: 1}, cell.CoresPerGbit{User: 0.125, SoftIRQ: 0.25}},
		{"more than there is", "veth", cell.CPU{User: 0.25, Foreign: 9, Wall: 1}, cell.CoresPerGbit{}},
		{"its own programs are foreign", "host-loopback", cpu, cell.CoresPerGbit{User: 0.25, System: 0.5, SoftIRQ: 0.25}},
		{"other programs may carry it", "existing-path", cpu, cell.CoresPerGbit{User: 0.25, System: 0.5, SoftIRQ: 0.25}},
	} {
		s := cell.Sample{Cell: cell.Cell{Network: tt.network}, Work: "tcp", Block: 1, CPU: tt.cpu, Values: map[cell.Metric]float64{cell.Throughput: 1e9}}
		if got := (group{good: []cell.Sample{s}}).cores(cell.Throughput); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}
