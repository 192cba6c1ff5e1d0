package traffic

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// pinnedVariable marks a process that Pin has already restarted.
const pinnedVariable = "CLEAT_PINNED_TO"

// Pin makes the whole process run on one processor, with all present and future threads.
// Existing threads can't be moved reliably. The first call therefore executes the program
// again, which inherits the affinity (and from it GOMAXPROCS); the second call finds that
// this was done and returns. Call it before anything that must not happen twice.
func Pin(cpu int) error {
	want := strconv.Itoa(cpu)
	if os.Getenv(pinnedVariable) == want {
		return os.Unsetenv(pinnedVariable) // not for children
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
	return fmt.Errorf("restart on processor %d: %w", cpu, err)
}
