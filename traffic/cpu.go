package traffic

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// CPUTimes is the time that the whole machine spent, in seconds summed over its
// processors (/proc/stat), and the elapsed time. The kernel counts in steps of 10 ms a
// processor.
type CPUTimes struct {
	User    float64 `json:"user_s"`    // user and nice
	System  float64 `json:"system_s"`  // in the kernel, without interrupts
	SoftIRQ float64 `json:"softirq_s"` // softirq and irq
	Idle    float64 `json:"idle_s"`    // idle and iowait
	Steal   float64 `json:"steal_s"`   // taken by the hypervisor
	Wall    float64 `json:"wall_s"`
}

// ReadCPU returns the times since boot. Wall is relative to an arbitrary moment.
func ReadCPU() (CPUTimes, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return CPUTimes{}, fmt.Errorf("read processor times: %w", err)
	}
	t, err := parseStat(b)
	t.Wall = time.Duration(nanos()).Seconds()
	return t, err
}

// userHZ is the unit of /proc/stat, sysconf(_SC_CLK_TCK): 100 a second on every
// architecture that Go supports.
const userHZ = 100

func parseStat(b []byte) (CPUTimes, error) {
	line, _, _ := bytes.Cut(b, []byte("\n"))
	f := strings.Fields(string(line))
	if len(f) < 9 || f[0] != "cpu" {
		return CPUTimes{}, errors.New("parse /proc/stat: no line \"cpu\" with eight numbers")
	}
	var v [8]float64 // user nice system idle iowait irq softirq steal
	for i := range v {
		n, err := strconv.ParseUint(f[i+1], 10, 64)
		if err != nil {
			return CPUTimes{}, fmt.Errorf("parse /proc/stat: %w", err)
		}
		v[i] = float64(n) / userHZ
	}
	return CPUTimes{User: v[0] + v[1], System: v[2], SoftIRQ: v[5] + v[6], Idle: v[3] + v[4], Steal: v[7]}, nil
}

// Sub returns the times from before to t. Counters that ran backwards, as idle times may,
// count as 0.
func (t CPUTimes) Sub(before CPUTimes) CPUTimes {
	ticks := func(now, before float64) float64 {
		return max(math.Round((now-before)*userHZ), 0) / userHZ
	}
	return CPUTimes{
		User:    ticks(t.User, before.User),
		System:  ticks(t.System, before.System),
		SoftIRQ: ticks(t.SoftIRQ, before.SoftIRQ),
		Idle:    ticks(t.Idle, before.Idle),
		Steal:   ticks(t.Steal, before.Steal),
		Wall:    max(t.Wall-before.Wall, 0),
	}
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

// kernelConfig returns the beginning of the running kernel's configuration.
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
