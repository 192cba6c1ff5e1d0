package usernettest

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"cleat/internal/procstat"

	"golang.org/x/sys/unix"
)

// procState returns a process's state as in /proc/PID/stat, or 0 if there is no such
// process.
func procState(pid int) byte {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	stat, _ := procstat.Parse(b)
	if state := stat.Field(3); state != "" {
		return state[0]
	}
	return 0
}

// freeze stops a process and waits until it has stopped. It continues at the end of the
// case.
func (x *T) freeze(pid int) {
	x.Must(unix.Kill(pid, unix.SIGSTOP))
	x.Cleanup(func() { unix.Kill(pid, unix.SIGCONT) })
	x.Await(func() error {
		if s := procState(pid); s != 'T' {
			return fmt.Errorf("process %d is in state %c, want T", pid, s)
		}
		return nil
	})
}

// thaw continues a stopped process.
func (x *T) thaw(pid int) { x.Must(unix.Kill(pid, unix.SIGCONT)) }

// descriptors returns the number of a process's open files.
func descriptors(pid int) (int, error) {
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return len(all), err
}

// residentBytes returns a process's resident memory.
func residentBytes(pid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "VmRSS:" {
			kib, _ := strconv.Atoi(f[1])
			return kib << 10
		}
	}
	return 0
}

// processesIn returns the processes in the network namespace with this inode number,
// except our own.
func processesIn(netnsID uint64) []string {
	all, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var found []string
	for _, e := range all {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err != nil || ns != fmt.Sprintf("net:[%d]", netnsID) {
			continue
		}
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		found = append(found, fmt.Sprintf("%d %s", pid, strings.TrimSpace(string(name))))
	}
	return found
}
