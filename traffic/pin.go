package traffic

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// pinnedVariable tells the second incarnation of a process that Pin has done
// its work.
const pinnedVariable = "CLEAT_PINNED_TO"

// Pin makes the whole process, every thread that it has and will have, run on
// one processor. Threads that exist already can't be moved reliably, so the
// first call replaces the process by itself, with the affinity inherited (and
// GOMAXPROCS, which the runtime takes from it); the second finds that it is
// done and returns. Call it before anything that must not happen twice.
func Pin(cpu int) error {
	want := strconv.Itoa(cpu)
	if os.Getenv(pinnedVariable) == want {
		return os.Unsetenv(pinnedVariable) // children are not to think they are pinned
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var set unix.CPUSet
	set.Set(cpu)
	if cpu < 0 || !set.IsSet(cpu) {
		return fmt.Errorf("pin to processor %d: %w", cpu, unix.EINVAL)
	}
	var old unix.CPUSet
	if err := unix.SchedGetaffinity(0, &old); err != nil {
		return fmt.Errorf("read processor affinity: %w", err)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("pin to processor %d: %w", cpu, err)
	}
	err := syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), pinnedVariable+"="+want))
	unix.SchedSetaffinity(0, &old)
	return fmt.Errorf("start again on processor %d: %w", cpu, err)
}
