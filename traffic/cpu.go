package traffic

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"cleat/internal/procstat"

	"golang.org/x/sys/unix"
)

// CPUTimes is the processor time of the whole machine in a period, and the period's length.
type CPUTimes struct {
	procstat.CPU
	Wall float64 `json:"wall_s"`
}

// AccountingMode returns how the running kernel attributes processor time: "tick" (to
// whatever runs at the timer tick), "virt_gen" (exact at each kernel entry, with
// nohz_full), "irq_time" (interrupts timed exactly), or "unknown" if the kernel's
// configuration can't be read. With "tick", softirq time is an estimate.
var AccountingMode = sync.OnceValue(func() string {
	config, err := kernelConfig()
	if err != nil {
		return "unknown"
	}
	nohz, _ := os.ReadFile("/sys/devices/system/cpu/nohz_full")
	return accountingMode(config, string(nohz))
})

// accountingMode derives the mode from the kernel's configuration and the list of
// processors without tick. VIRT_CPU_ACCOUNTING_GEN only affects those.
func accountingMode(config, nohz string) string {
	nohz = strings.TrimSpace(nohz)
	on := func(option string) bool {
		return strings.HasPrefix(config, option+"=y\n") || strings.Contains(config, "\n"+option+"=y\n")
	}
	switch {
	case on("CONFIG_IRQ_TIME_ACCOUNTING"):
		return "irq_time"
	case on("CONFIG_VIRT_CPU_ACCOUNTING_GEN") && nohz != "" && nohz != "(null)":
		return "virt_gen"
	case on("CONFIG_VIRT_CPU_ACCOUNTING_GEN"), on("CONFIG_TICK_CPU_ACCOUNTING"):
		return "tick"
	}
	return "unknown"
}

// configHead is how much of a kernel's configuration is read, in bytes. The accounting
// options are within its first 10 KiB, and decompressing all of it takes longer than
// starting this program.
const configHead = 64 << 10

func kernelConfig() (string, error) {
	if f, err := os.Open("/proc/config.gz"); err == nil {
		defer f.Close()
		z, err := gzip.NewReader(bufio.NewReader(f))
		if err != nil {
			return "", fmt.Errorf("read /proc/config.gz: %w", err)
		}
		b, err := io.ReadAll(io.LimitReader(z, configHead))
		return string(b), err
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", err
	}
	b, err := os.ReadFile("/boot/config-" + unix.ByteSliceToString(u.Release[:]))
	return string(b), err
}
