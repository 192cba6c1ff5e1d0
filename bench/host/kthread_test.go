package host

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// writeStat writes a line of /proc/PID/stat of a process that used so many ticks in the kernel.
func writeStat(t *testing.T, proc string, pid int, name string, flags uint32, stime int) {
	t.Helper()
	dir := filepath.Join(proc, fmt.Sprint(pid))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	line := fmt.Sprintf("%d (%s) S 2 0 0 0 -1 %d 0 0 0 0 0 %d 0 0 20 0 1 0 14 0 0\n", pid, name, flags, stime)
	if err := os.WriteFile(filepath.Join(dir, "stat"), []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
}

const kthreadFlags = 0x04208040 // of a kworker

func TestReadKernelThreads(t *testing.T) {
	proc := t.TempDir()
	for i, name := range []string{
		"kworker/0:0H-events_highpri", "kworker/u8:1+wg-crypt-wg0", "kworker/R-wg-crypt-wg0", "wg-crypt-wg0",
		"ksoftirqd/1", "napi/eth0-8193", "backlog_napi/0", "rcu_preempt", // 1 to 8
		"kswapd0", "kcompactd0", "khugepaged", "kdamond.0", "md0_resync", "jbd2/vda1-8", "kthreadd",
	} {
		writeStat(t, proc, i+1, name, kthreadFlags, 100*(i+1))
	}
	writeStat(t, proc, 99, "kworker/0:1-evil", 0x400040, 5) // a process that took the name
	all := readKernelThreads(proc)
	if got, want := slices.Sorted(maps.Keys(all)), []int{1, 2, 3, 4, 5, 6, 7, 8}; !slices.Equal(got, want) {
		t.Errorf("threads %v, want %v", got, want)
	}
	if all[2] != (kernelThread{used: 2}) || all[5] != (kernelThread{used: 5, inSoftIRQ: true}) {
		t.Errorf("got %+v and %+v", all[2], all[5])
	}
	if none := readKernelThreads(filepath.Join(proc, "none")); len(none) != 0 {
		t.Errorf("got %v without a /proc", none)
	}
}

// TestKernelTime checks that a worker that ends takes its earlier time with it.
func TestKernelTime(t *testing.T) {
	before := map[int]kernelThread{1: {used: 5}, 2: {used: 100}, 3: {used: 1, inSoftIRQ: true}, 4: {used: 9}}
	after := map[int]kernelThread{1: {used: 5.5}, 3: {used: 1.25, inSoftIRQ: true}, 4: {used: 0.5}, 5: {used: 0.125}}
	if whole, system := kernelTime(before, after); !near(whole, 0.875) || !near(system, 0.625) {
		t.Errorf("got %v, %v of them no softirqs", whole, system)
	}
}

// TestWireGuardIsNotForeign checks that what WireGuard's workers use is not foreign, and what
// kswapd uses is.
func TestWireGuardIsNotForeign(t *testing.T) {
	for name, want := range map[string]float64{"kworker/u8:1+wg-crypt-wg0": 0, "kswapd0": 0.5} {
		proc := t.TempDir()
		m, err := NewCPUMeter(proc)
		if err != nil {
			t.Fatal(err)
		}
		m.begin.System, m.end.System = 0, 0.5 // of the machine
		writeStat(t, proc, 7, name, kthreadFlags, 50)
		c, err := m.Result()
		if err != nil {
			t.Fatal(err)
		}
		if c.Foreign < want-0.1 || c.Foreign > want+0.01 { // this process used some
			t.Errorf("%s: %v s are foreign, want %v", name, c.Foreign, want)
		}
	}
}
