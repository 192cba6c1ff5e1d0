package dhcp

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Stamp is a point in time by two clocks: the wall clock, which people and NTP set, and
// the time since the machine was started, which includes sleep but is meaningless after a
// restart. Stamps can be compared.
type Stamp struct {
	Wall time.Time     `json:"wall"`
	Boot string        `json:"boot"`  // boot id (random(4))
	Up   time.Duration `json:"up_ns"` // since that boot (CLOCK_BOOTTIME)
}

// Now returns the present time.
func Now() (Stamp, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Stamp{}, fmt.Errorf("read clock: %w", err)
	}
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return Stamp{}, fmt.Errorf("read clock: %w", err)
	}
	return Stamp{Wall: time.Now().Round(0), Boot: strings.TrimSpace(string(id)), Up: time.Duration(up.Nano())}, nil
}

// since returns the time from then to s. Across a restart of the machine it relies on the
// wall clock. ok is false if that has gone back.
func (s Stamp) since(then Stamp) (time.Duration, bool) {
	if then == (Stamp{}) || s == (Stamp{}) {
		return 0, false
	}
	if s.Boot == then.Boot {
		return s.Up - then.Up, s.Up >= then.Up
	}
	d := s.Wall.Sub(then.Wall)
	return d, d >= 0
}

func (s Stamp) add(d time.Duration) Stamp {
	return Stamp{Wall: s.Wall.Add(d), Boot: s.Boot, Up: s.Up + d}
}
