package host

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"cleat/internal/procstat"

	"golang.org/x/sys/unix"
)

// process is what /proc/PID/stat says of a process.
type process struct {
	parent int
	used   cpuTime
}

// cpuTime is processor time in seconds, of a process and of the children that it waited for.
type cpuTime struct{ user, system float64 }

// processes reads all processes in /proc, by their ids. Processes that end meanwhile are left
// out. For this process getrusage(2) is finer than the ticks in /proc.
func processes() (map[int]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	all := map[int]process{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		p, ok := parseProcess(stat)
		if !ok {
			continue
		}
		if pid == os.Getpid() {
			if p.used, err = ownTime(); err != nil {
				return nil, err
			}
		}
		all[pid] = p
	}
	return all, nil
}

func descends(all map[int]process, pid, root int) bool {
	for pid > 0 {
		if pid == root {
			return true
		}
		pid = all[pid].parent
	}
	return false
}

func parseProcess(text []byte) (p process, ok bool) {
	const parentField, utime = 4, 14 // followed by stime, cutime, cstime
	stat, ok := procstat.Parse(text)
	if !ok {
		return process{}, false
	}
	parent, err := strconv.Atoi(stat.Field(parentField))
	if err != nil {
		return process{}, false
	}
	p.parent = parent
	for i, sum := range []*float64{&p.used.user, &p.used.system, &p.used.user, &p.used.system} {
		ticks, err := strconv.ParseInt(stat.Field(utime+i), 10, 64)
		if err != nil {
			return process{}, false
		}
		*sum += float64(ticks) / procstat.UserHZ
	}
	return p, true
}

func ownTime() (cpuTime, error) {
	var t cpuTime
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err != nil {
			return cpuTime{}, fmt.Errorf("read own processor time: %w", err)
		}
		t.user += time.Duration(u.Utime.Nano()).Seconds()
		t.system += time.Duration(u.Stime.Nano()).Seconds()
	}
	return t, nil
}

// treeTime returns the time of this process and its descendants, alive and waited for. As process
// 1 of a PID namespace, which a lab's bench is, all processes are its descendants, orphans too.
func treeTime() (cpuTime, error) {
	all, err := processes()
	if err != nil {
		return cpuTime{}, err
	}
	var sum cpuTime
	self := os.Getpid()
	for pid, p := range all {
		if self == 1 || descends(all, pid, self) {
			sum.user += p.used.user
			sum.system += p.used.system
		}
	}
	return sum, nil
}
