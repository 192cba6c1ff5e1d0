package host

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"cleat/bench/cell"
	"cleat/internal/procstat"
)

// CPUMeter splits the processor time of the whole machine over a run.
//
// /proc/stat has the totals of the whole machine in every namespace. Foreign is the time that
// neither this process, nor one of its descendants, nor a kernel thread that may do a network's
// work (networkThreads) used:
//
//	foreign user   = user + nice − own user time
//	foreign system = system − own system time − time of these kernel threads
//
// Each is at least 0, and their sum is at most the machine's user, system and softirq time minus
// all of our own and of these threads: the kernel knows a process's total exactly, but divides it into user and system
// by samples of its whole life, so that the parts of one second may be wrong. Our own time is
// utime + stime of each live process, and cutime + cstime, which hold the time of processes that
// were waited for (proc(5)). Other processes need not be visible, so this works inside a PID
// namespace, with the /proc of the host for kernel threads. On a machine that hides them, such as
// a container, they count as foreign.
//
// The kernel charges softirq work to the process it interrupts (except with AccountIRQTime), but
// /proc/stat counts it apart. How much of our system time was softirq can't be known, so foreign
// system time is a lower bound: a neighbour that works only in the kernel can hide behind as much
// time as our own softirqs took. Its user time can't hide. The same holds for softirqs that
// interrupt a kernel thread. The time of ksoftirqd is softirq time only.
//
// With AccountTick the split is sampled: over a run of t seconds on n CPUs the standard error of
// each part is up to sqrt(n·t/HZ)/2 seconds, 0.03 s for half a second on two CPUs at 250 Hz.
// Foreign is no more precise than that.
//
// A meter is not safe for concurrent use.
type CPUMeter struct {
	own        cpuTime
	proc       string // a /proc that shows kernel threads
	kernel     map[int]kernelThread
	started    time.Time
	wall       time.Duration
	begin, end procstat.CPU
}

// NewCPUMeter reads what this process and its descendants have used so far, and kernel threads from
// hostProc, which is the host's /proc. That takes about 20 µs for each process in both, so call it
// while they wait. It fails if /proc can't be read.
func NewCPUMeter(hostProc string) (*CPUMeter, error) {
	kernel := readKernelThreads(hostProc)
	own, err := treeTime()
	return &CPUMeter{own: own, proc: hostProc, kernel: kernel}, err
}

// Begin begins the measurement. It reads one file only, so that it is quick even on a busy
// machine.
func (m *CPUMeter) Begin() (err error) {
	m.begin, err = procstat.ReadCPU()
	m.started = time.Now()
	return err
}

// End ends the measurement by reading the same file again.
func (m *CPUMeter) End() (err error) {
	m.end, err = procstat.ReadCPU()
	m.wall = time.Since(m.started)
	return err
}

// Result returns where the time between Begin and End went. It reads the processes' times again:
// what they used outside that interval hides as much foreign time.
func (m *CPUMeter) Result() (cell.CPU, error) {
	own, err := treeTime()
	if err != nil {
		return cell.CPU{}, err
	}
	t := m.end.Since(m.begin)
	c := cell.CPU{User: t.User, System: t.System, SoftIRQ: t.SoftIRQ, Idle: t.Idle, Steal: t.Steal, Wall: m.wall.Seconds()}
	whole, system := kernelTime(m.kernel, readKernelThreads(m.proc))
	used := ours{user: own.user - m.own.user, system: own.system - m.own.system + system, softIRQ: whole - system}
	c.ForeignUser, c.Foreign = foreign(c, used)
	return c, nil
}

// ours is the time that is not foreign, in seconds.
type ours struct {
	user, system float64 // of our processes, with the softirqs that interrupted them, and of kernel threads
	softIRQ      float64 // of kernel threads that are softirq time only
}

// foreign applies the rule in the comment of CPUMeter, and returns the user time and all. All times
// are in seconds.
func foreign(c cell.CPU, o ours) (user, all float64) {
	user, system := max(0, c.User-o.user), max(0, c.System-o.system)
	whole := max(0, c.User+c.System+c.SoftIRQ-o.user-o.system-o.softIRQ)
	if parts := user + system; parts > whole {
		return user * whole / parts, whole
	}
	return user, user + system
}

// Load is what the machine did while nothing was measured, in cores.
type Load struct {
	Over     float64 `json:"over_s,omitempty"` // seconds watched; 0: not watched
	Foreign  float64 `json:"foreign_cores"`    // used by neither this process nor its descendants
	SoftIRQ  float64 `json:"softirq_cores"`
	Steal    float64 `json:"steal_cores"` // taken by the hypervisor
	Average1 float64 `json:"load_average_1m"`
	Pressure string  `json:"cpu_pressure,omitempty"` // of /proc/pressure/cpu, "some avg10=…"
}

// loadWindow is how long Fingerprint watches the load. With sampled accounting at 250 Hz the
// standard error is 0.07 cores on two half-busy CPUs, and less on idle ones.
const loadWindow = 400 * time.Millisecond

// watchLoad watches the machine for d, or until ctx ends, and returns how much of it other processes
// than this one and its descendants use. The limits of CPUMeter apply.
func watchLoad(ctx context.Context, d time.Duration) (Load, error) {
	m, err := NewCPUMeter("/proc")
	if err == nil {
		err = m.Begin()
	}
	if err != nil {
		return Load{}, err
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	if err := m.End(); err != nil {
		return Load{}, err
	}
	c, err := m.Result()
	if err != nil {
		return Load{}, err
	}
	if c.Wall < 0.05 { // five ticks of USER_HZ are too few
		return Load{}, fmt.Errorf("watch the load: %w", context.Cause(ctx))
	}
	return Load{Over: round(c.Wall), Foreign: round(c.Foreign / c.Wall), SoftIRQ: round(c.SoftIRQ / c.Wall), Steal: round(c.Steal / c.Wall)}, nil
}

// round keeps three digits after the point, finer than the clocks.
func round(x float64) float64 { return math.Round(x*1000) / 1000 }

func measureLoad(ctx context.Context, f *files) Load {
	load, err := watchLoad(ctx, loadWindow)
	if err != nil {
		f.deny("load: " + err.Error())
	}
	if words := strings.Fields(f.read("proc/loadavg")); len(words) > 0 {
		load.Average1, _ = strconv.ParseFloat(words[0], 64)
	}
	load.Pressure, _, _ = strings.Cut(f.read("proc/pressure/cpu"), "\n")
	return load
}
