package named

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"cleat/netns"

	"golang.org/x/sys/unix"
)

// processesIn returns the processes in a network namespace, except for this one, whose
// threads visit it. Those that have ended have no namespace any more.
func processesIn(ns *netns.NS) ([]int, error) {
	id, err := ns.ID()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		var st unix.Stat_t
		if unix.Stat("/proc/"+e.Name()+"/ns/net", &st) == nil && st.Ino == id {
			found = append(found, pid)
		}
	}
	return found, nil
}

const (
	endPoll    = 2 * time.Millisecond
	endTimeout = 10 * time.Second // of a killed process, on a busy machine
)

// EndProcesses kills all processes in a network namespace, which must not be that of the
// lab itself, until there is none: one that is killed may just have started another.
func EndProcesses(ns *netns.NS) error {
	for deadline := time.Now().Add(endTimeout); ; time.Sleep(endPoll) {
		all, err := processesIn(ns)
		if err != nil || len(all) == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v of %s do not end", all, ns)
		}
		for _, pid := range all {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("end process %d of %s: %w", pid, ns, err)
			}
		}
		for _, pid := range all {
			reap(pid, deadline)
		}
	}
}

// reap waits for the end of a process that has been killed. Those whose parent has ended are
// children of the lab's first process, which must collect their status.
func reap(pid int, deadline time.Time) {
	for time.Now().Before(deadline) {
		if os.Getpid() == 1 {
			unix.Wait4(pid, nil, unix.WNOHANG, nil) // it may be no child of ours
		}
		if errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			return
		}
		time.Sleep(endPoll)
	}
}
