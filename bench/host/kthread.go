package host

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"cleat/internal/procstat"
)

// kernelThread is a kernel thread that may do a network's work.
type kernelThread struct {
	used      float64 // seconds in the kernel, since it began
	inSoftIRQ bool    // /proc/stat counts its time as softirq time
}

// networkThreads are the kernel threads that are never foreign, by the start of their names. They
// do the work of a measurement, or whose work they do can't be told:
//   - kworker: WireGuard encrypts in them, and they free namespaces and devices. They also write
//     back files, which so does not count as foreign.
//   - ksoftirqd: softirq work that took too long, mostly packets.
//   - ktimers: the same for timers, of PREEMPT_RT.
//   - napi, backlog_napi: threaded NAPI.
//   - wg: the rescue workers of WireGuard before Linux 6.9.
//   - rcu: frees what networks drop.
//
// All others are foreign: kswapd, kcompactd, khugepaged, ksmd, kdamond, md's resync, file systems.
var networkThreads = []string{"kworker/", "ksoftirqd/", "ktimers/", "napi/", "backlog_napi/", "wg-", "rcu"}

// softIRQThreads are those whose time /proc/stat counts as softirq time (kernel/sched/cputime.c).
var softIRQThreads = []string{"ksoftirqd/", "ktimers/"}

// readKernelThreads returns the networkThreads by their ids, from a /proc. It returns none for the
// /proc of a PID namespace without them: a container's.
func readKernelThreads(proc string) map[int]kernelThread {
	all := map[int]kernelThread{}
	entries, _ := os.ReadDir(proc) // without them, kernel threads count as foreign
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile(filepath.Join(proc, e.Name(), "stat"))
		if err != nil {
			continue // it has ended
		}
		if t, ok := parseKernelThread(text); ok {
			all[pid] = t
		}
	}
	return all
}

// parseKernelThread reports whether a line of /proc/PID/stat is that of one of the networkThreads.
// Any process can have such a name, only kernel threads have the flag.
func parseKernelThread(text []byte) (kernelThread, bool) {
	const flagsField, stimeField = 9, 15
	const pfKthread = 0x00200000 // PF_KTHREAD, include/linux/sched.h
	stat, ok := procstat.Parse(text)
	if !ok || !hasPrefix(stat.Name, networkThreads) {
		return kernelThread{}, false
	}
	flags, err := strconv.ParseUint(stat.Field(flagsField), 10, 32)
	if err != nil || flags&pfKthread == 0 {
		return kernelThread{}, false
	}
	ticks, err := strconv.ParseInt(stat.Field(stimeField), 10, 64)
	if err != nil {
		return kernelThread{}, false
	}
	return kernelThread{float64(ticks) / procstat.UserHZ, hasPrefix(stat.Name, softIRQThreads)}, true
}

func hasPrefix(name string, prefixes []string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

// kernelTime returns what the threads used between two readings, in seconds: all, and what is no
// softirq time. A worker that ended in between does not count.
func kernelTime(before, after map[int]kernelThread) (whole, system float64) {
	for pid, t := range after {
		used := max(0, t.used-before[pid].used) // less than 0: another thread has its id
		whole += used
		if !t.inSoftIRQ {
			system += used
		}
	}
	return whole, system
}
