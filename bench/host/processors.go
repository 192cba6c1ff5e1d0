package host

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Processors returns the processors this process may use, one of each physical core
// first, so that "different-cores" does not mean two threads of one.
func Processors() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("read the processor affinity: %w", err)
	}
	var firsts, siblings []int
	seen := map[string]bool{}
	for cpu := range len(set) * 64 {
		if !set.IsSet(cpu) {
			continue
		}
		core := coreOf(cpu)
		if core != "" && seen[core] {
			siblings = append(siblings, cpu)
			continue
		}
		seen[core] = true
		firsts = append(firsts, cpu)
	}
	return append(firsts, siblings...), nil
}

// coreOf returns an identifier of the physical core of a processor; "" if sysfs has
// none.
func coreOf(cpu int) string {
	b, err := os.ReadFile(fmt.Sprintf("/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
