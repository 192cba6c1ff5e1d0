package host

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"cleat/bench/cell"

	"golang.org/x/sys/unix"
)

// userHz is USER_HZ, the unit of /proc/stat and /proc/PID/stat, 100 on every
// Linux since 2.6 (include/asm-generic/param.h).
const userHz = 100

// Tree is a set of processes: the roots and all their descendants. The zero
// Tree is this process and its descendants. In a lab the bench is process 1 of
// its own PID namespace, so that even orphans stay in the tree.
type Tree struct {
	Roots []int
}

// CPUMeter splits the processor time of the whole machine over a run.
//
// The totals are those of /proc/stat, which every namespace sees for the whole
// machine, minus those at the start. Foreign is what no process of the tree
// used:
//
//	foreign user   = user + nice − the tree's user time
//	foreign system = system − the tree's system time
//
// each not below 0, and together not more than the machine's user, system and
// softirq time minus all of the tree's: the kernel knows a process's total
// exactly, but divides it into user and system by samples of its whole life, so
// that the parts of one second may be wrong. The tree's time is utime + stime of each live process and
// cutime + cstime, in which a process that was waited for lives on (proc(5)).
// Other processes need not be visible for this, so that it works inside a PID
// namespace; and it costs one read per process of the tree.
//
// The kernel charges softirq work to the process it interrupts (except with
// AccountIRQTime), but /proc/stat shows it apart. Which part of the tree's
// system time was softirq can't be known, so foreign system time is a lower
// bound: a neighbour that works in the kernel only can hide behind as much time
// as our own softirqs took. Its user time can't hide. Kernel threads count as
// foreign, except for their softirq work.
//
// With AccountTick the split is sampled: over a run of t seconds on n CPUs the
// standard error of each part is up to sqrt(n·t/HZ)/2 seconds, 0.03 s for half a
// second on two CPUs at 250 Hz. Do not read more out of Foreign than that.
//
// Use a meter from one goroutine at a time.
type CPUMeter struct {
	tree    Tree
	started time.Time
	own     ownTime

	machine, machineEnd machineTime
	wall                time.Duration
}

// NewCPUMeter notes what the tree has used so far, which takes about 20 µs for
// each of its processes: do it while they wait. The error is that /proc can't
// be read.
func NewCPUMeter(tree Tree) (*CPUMeter, error) {
	m := &CPUMeter{tree: tree}
	var err error
	m.own, err = tree.used()
	return m, err
}

// Begin begins the measurement. It reads one file, and so happens when it is
// called even on a busy machine.
func (m *CPUMeter) Begin() error {
	var err error
	m.machine, err = readMachine()
	m.started = time.Now()
	return err
}

// End ends the measurement, by reading the same file again.
func (m *CPUMeter) End() error {
	var err error
	m.machineEnd, err = readMachine()
	m.wall = time.Since(m.started)
	return err
}

// Result says where the time between Begin and End went. It walks the tree
// again; what the tree used outside of that time hides as much foreign time.
// unseen is processor time of the experiment's own that the tree could not see,
// such as that of commands run outside of the lab; it is taken off Foreign.
func (m *CPUMeter) Result(unseen time.Duration) (cell.CPU, error) {
	own, err := m.tree.used()
	if err != nil {
		return cell.CPU{}, err
	}
	c := m.machineEnd.since(m.machine)
	c.Wall = m.wall.Seconds()
	c.Foreign = foreign(c, own.user-m.own.user, own.system-m.own.system, unseen.Seconds())
	return c, nil
}

// foreign is the rule that CPUMeter states, in seconds.
func foreign(c cell.CPU, ownUser, ownSystem, unseen float64) float64 {
	parts := max(0, c.User-ownUser) + max(0, c.System-ownSystem)
	whole := c.User + c.System + c.SoftIRQ - ownUser - ownSystem
	return max(0, min(parts, whole)-unseen)
}

// Load is what the machine was doing when nothing was measured, in cores.
type Load struct {
	Over     float64 `json:"over_s,omitempty"` // seconds watched; 0: not watched
	Foreign  float64 `json:"foreign_cores"`    // used by others than this process and its children
	SoftIRQ  float64 `json:"softirq_cores"`
	Steal    float64 `json:"steal_cores"` // taken by the hypervisor
	Average1 float64 `json:"load_average_1m"`
	Pressure string  `json:"cpu_pressure,omitempty"` // of /proc/pressure/cpu, "some avg10=…"
}

// loadWindow is how long Fingerprint watches: with sampled accounting at 250 Hz
// the standard error is 0.07 cores on two half busy CPUs, and less on idle ones.
const loadWindow = 400 * time.Millisecond

// ForeignLoad watches the machine for d, or until ctx ends, and says how much of
// it processes outside of tree use. It works inside a PID namespace; the limits
// of CPUMeter hold.
func ForeignLoad(ctx context.Context, tree Tree, d time.Duration) (Load, error) {
	m, err := NewCPUMeter(tree)
	if err == nil {
		err = m.Begin()
	}
	if err != nil {
		return Load{}, err
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	if err := m.End(); err != nil {
		return Load{}, err
	}
	c, err := m.Result(0)
	if err != nil {
		return Load{}, err
	}
	if c.Wall < 0.05 { // five ticks of USER_HZ say nothing
		return Load{}, fmt.Errorf("watch the load: %w", context.Cause(ctx))
	}
	return Load{Over: round(c.Wall), Foreign: round(c.Foreign / c.Wall), SoftIRQ: round(c.SoftIRQ / c.Wall), Steal: round(c.Steal / c.Wall)}, nil
}

// round keeps three digits after the point, finer than the clocks are.
func round(x float64) float64 { return math.Round(x*1000) / 1000 }

// measureLoad is the load for a Host.
func measureLoad(ctx context.Context, f *files) Load {
	load, err := ForeignLoad(ctx, Tree{}, loadWindow)
	if err != nil {
		f.deny("load: " + err.Error())
	}
	if words := strings.Fields(f.read("proc/loadavg")); len(words) > 0 {
		load.Average1, _ = strconv.ParseFloat(words[0], 64)
	}
	load.Pressure, _, _ = strings.Cut(f.read("proc/pressure/cpu"), "\n")
	return load
}

// machineTime is the first line of /proc/stat, in ticks of USER_HZ.
type machineTime [8]uint64

// Fields of the cpu line of /proc/stat (proc(5)). Guest time is part of user
// and nice.
const (
	statUser = iota
	statNice
	statSystem
	statIdle
	statIOWait
	statIRQ
	statSoftIRQ
	statSteal
)

func readMachine() (machineTime, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return machineTime{}, fmt.Errorf("read processor time: %w", err)
	}
	line, _, _ := strings.Cut(string(b), "\n")
	return parseMachine(line)
}

func parseMachine(line string) (machineTime, error) {
	words := strings.Fields(line)
	if len(words) < 1+len(machineTime{}) || words[0] != "cpu" {
		return machineTime{}, fmt.Errorf("parse /proc/stat: unexpected line %q", line)
	}
	var t machineTime
	for i := range t {
		n, err := strconv.ParseUint(words[1+i], 10, 64)
		if err != nil {
			return machineTime{}, fmt.Errorf("parse /proc/stat: %w", err)
		}
		t[i] = n
	}
	return t, nil
}

// since is the time from then to t. Counters that went backwards (idle and
// iowait may, proc(5)) count as 0.
func (t machineTime) since(then machineTime) cell.CPU {
	seconds := func(fields ...int) float64 {
		var sum float64
		for _, i := range fields {
			if t[i] > then[i] {
				sum += float64(t[i]-then[i]) / userHz
			}
		}
		return sum
	}
	return cell.CPU{
		User:    seconds(statUser, statNice),
		System:  seconds(statSystem),
		SoftIRQ: seconds(statSoftIRQ, statIRQ),
		Idle:    seconds(statIdle, statIOWait),
		Steal:   seconds(statSteal),
	}
}

// ownTime is processor time in seconds.
type ownTime struct{ user, system float64 }

// used sums the time of the tree's processes, alive and waited for. A process
// that ends while we look is skipped.
func (t Tree) used() (ownTime, error) {
	roots := t.Roots
	if len(roots) == 0 {
		roots = []int{os.Getpid()}
	}
	var sum ownTime
	if len(t.Roots) == 0 && os.Getpid() == 1 {
		return everyProcess()
	}
	for _, root := range roots {
		if _, err := os.Stat(procDir(root)); err != nil {
			return ownTime{}, fmt.Errorf("read processor time of process %d: %w", root, err)
		}
	}
	seen := map[int]bool{}
	for queue := roots; len(queue) > 0; {
		pid := queue[0]
		queue = queue[1:]
		if seen[pid] {
			continue
		}
		seen[pid] = true
		u, err := processTime(pid)
		if err != nil {
			continue
		}
		sum.user += u.user
		sum.system += u.system
		queue = append(queue[:len(queue):len(queue)], children(pid)...)
	}
	return sum, nil
}

// everyProcess sums the time of all processes in /proc: in a PID namespace of
// our own each is a descendant, and listing them is quicker than following
// every thread's children.
func everyProcess() (ownTime, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return ownTime{}, fmt.Errorf("list processes: %w", err)
	}
	var sum ownTime
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		u, err := processTime(pid)
		if err != nil {
			continue // it has ended
		}
		sum.user += u.user
		sum.system += u.system
	}
	return sum, nil
}

func procDir(pid int) string { return "/proc/" + strconv.Itoa(pid) }

// processTime is a process's own time and that of the children it waited for.
// For this process getrusage(2) is finer than the ticks in /proc.
func processTime(pid int) (ownTime, error) {
	if pid == os.Getpid() {
		return selfTime()
	}
	b, err := os.ReadFile(procDir(pid) + "/stat")
	if err != nil {
		return ownTime{}, err
	}
	return parseProcess(string(b))
}

func selfTime() (ownTime, error) {
	var t ownTime
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err != nil {
			return ownTime{}, fmt.Errorf("read own processor time: %w", err)
		}
		t.user += time.Duration(u.Utime.Nano()).Seconds()
		t.system += time.Duration(u.Stime.Nano()).Seconds()
	}
	return t, nil
}

// errFormat says that /proc has another form than proc(5) says.
var errFormat = errors.New("unexpected format")

// parseProcess reads /proc/PID/stat; the command in its second field may hold
// spaces and parentheses.
func parseProcess(stat string) (ownTime, error) {
	_, rest, ok := cutLast(stat, ")")
	words := strings.Fields(rest)
	// Field 3 of proc(5) is words[0]; utime, stime, cutime, cstime are 14…17.
	const utime = 14 - 3
	if !ok || len(words) < utime+4 {
		return ownTime{}, fmt.Errorf("parse process status %.40q: %w", stat, errFormat)
	}
	var n [4]int64
	for i := range n {
		v, err := strconv.ParseInt(words[utime+i], 10, 64)
		if err != nil {
			return ownTime{}, fmt.Errorf("parse process status: %w", err)
		}
		n[i] = v
	}
	return ownTime{user: float64(n[0]+n[2]) / userHz, system: float64(n[1]+n[3]) / userHz}, nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// children lists the child processes of pid. Each thread lists its own
// (CONFIG_PROC_CHILDREN); where the kernel has no such lists every process is
// asked for its parent, which takes longer.
func children(pid int) []int {
	threads, _ := os.ReadDir(procDir(pid) + "/task")
	var out []int
	for _, thread := range threads {
		b, err := os.ReadFile(procDir(pid) + "/task/" + thread.Name() + "/children")
		if errors.Is(err, os.ErrNotExist) && !hasChildLists() {
			return childrenByParent(pid)
		}
		for _, word := range strings.Fields(string(b)) {
			if child, err := strconv.Atoi(word); err == nil {
				out = append(out, child)
			}
		}
	}
	return out
}

func hasChildLists() bool {
	_, err := os.Stat("/proc/thread-self/children")
	return err == nil
}

func childrenByParent(parent int) []int {
	entries, _ := os.ReadDir("/proc")
	var out []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile(procDir(pid) + "/stat")
		_, rest, _ := cutLast(string(b), ")")
		if words := strings.Fields(rest); err == nil && len(words) > 1 && words[1] == strconv.Itoa(parent) {
			out = append(out, pid)
		}
	}
	return out
}
