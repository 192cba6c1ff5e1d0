package dhcp

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Stamp is a moment, by two clocks: that on the wall, which people and NTP set, and that
// which counts from the machine's start, sleep included, and means nothing after the next.
// Two Stamps may be compared.
type Stamp struct {
	Wall time.Time     `json:"wall"`
	Boot string        `json:"boot"`  // which start: boot_id (random(4))
	Up   time.Duration `json:"up_ns"` // since then (CLOCK_BOOTTIME)
}

// Now is the present moment.
func Now() (Stamp, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Stamp{}, fmt.Errorf("read the time: %w", err)
	}
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return Stamp{}, fmt.Errorf("read the time: %w", err)
	}
	return Stamp{Wall: time.Now().Round(0), Boot: strings.TrimSpace(string(id)), Up: time.Duration(up.Nano())}, nil
}

// since is the time from then to s. Over a restart of the machine the wall's clock is all
// there is; when it says that then is yet to come, nobody knows.
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

// add is the moment d after s.
func (s Stamp) add(d time.Duration) Stamp {
	return Stamp{Wall: s.Wall.Add(d), Boot: s.Boot, Up: s.Up + d}
}
