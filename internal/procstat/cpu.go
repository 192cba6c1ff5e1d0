package procstat

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
)

// UserHZ is USER_HZ, the ticks of /proc/stat and /proc/PID/stat in a second: 100 on every
// architecture that Go supports (include/asm-generic/param.h).
const UserHZ = 100

// CPU is the processor time of the whole machine, in seconds summed over its processors. The
// kernel counts in steps of 10 ms a processor.
type CPU struct {
	User    float64 `json:"user_s"`    // user and nice, which include guests' time
	System  float64 `json:"system_s"`  // in the kernel, without interrupts
	SoftIRQ float64 `json:"softirq_s"` // softirq and irq
	Idle    float64 `json:"idle_s"`    // idle and iowait
	Steal   float64 `json:"steal_s"`   // taken by the hypervisor
}

// ReadCPU returns the times since boot.
func ReadCPU() (CPU, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return CPU{}, fmt.Errorf("read processor time: %w", err)
	}
	return parseCPU(b)
}

// parseCPU parses the first line of /proc/stat.
func parseCPU(b []byte) (CPU, error) {
	line, _, _ := bytes.Cut(b, []byte("\n"))
	f := strings.Fields(string(line))
	if len(f) < 9 || f[0] != "cpu" {
		return CPU{}, fmt.Errorf("parse /proc/stat: unexpected line %q", line)
	}
	var v [8]float64 // user nice system idle iowait irq softirq steal
	for i := range v {
		n, err := strconv.ParseUint(f[i+1], 10, 64)
		if err != nil {
			return CPU{}, fmt.Errorf("parse /proc/stat: %w", err)
		}
		v[i] = float64(n) / UserHZ
	}
	return CPU{User: v[0] + v[1], System: v[2], SoftIRQ: v[5] + v[6], Idle: v[3] + v[4], Steal: v[7]}, nil
}

// Since returns the times from before to t. Counters that ran backwards, as idle times may,
// count as 0.
func (t CPU) Since(before CPU) CPU {
	ticks := func(now, before float64) float64 {
		return max(math.Round((now-before)*UserHZ), 0) / UserHZ
	}
	return CPU{
		User:    ticks(t.User, before.User),
		System:  ticks(t.System, before.System),
		SoftIRQ: ticks(t.SoftIRQ, before.SoftIRQ),
		Idle:    ticks(t.Idle, before.Idle),
		Steal:   ticks(t.Steal, before.Steal),
	}
}
