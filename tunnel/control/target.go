package control

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"cleat/internal/rate"
	"cleat/tunnel"
	"cleat/tunnel/spec"
)

// Target is a running tunnel. Its methods must be safe for concurrent use. The errors
// that they wrap determine the status of the answer: tunnel.ErrNoPath, ErrPathExists and
// ErrTooMany, *spec.PathError and *FileError; for others the client gets the text. The
// result of a Hint() string method of an error, or of one that it wraps, is passed on
// too.
type Target interface {
	Info() Info
	Status() tunnel.Status
	// SetPath enables or disables a path.
	SetPath(name string, up bool) error
	// AddPath adds a path. It must check the path, and replace ports that are 0 by the
	// tunnel's: spec.Tunnel.CheckPath does both.
	AddPath(spec.Path) error
	// RemovePath removes a path.
	RemovePath(name string) error
	// Reload reads the tunnel's file again and applies it. The lists of the result are not
	// nil.
	Reload() (Reloaded, error)
	// Stop ends the tunnel. It is called after the client has got its answer, and must
	// not wait for Serve.
	Stop()
}

// Info is general information about a tunnel.
type Info struct {
	Name      string         `json:"name"`
	Device    string         `json:"device"` // the TUN device
	File      string         `json:"file"`   // absolute path of the tunnel file; "": standard input
	PID       int            `json:"pid"`
	Started   time.Time      `json:"started"`
	Form      spec.Form      `json:"form"`      // as configured
	Scheduler spec.Scheduler `json:"scheduler"` // in use
	Version   string         `json:"version"`   // of cleat
	Sealed    Sealed         `json:"sealed"`
}

// Sealed is what the process is still allowed to do.
type Sealed struct {
	Capabilities    []string `json:"capabilities"` // "CAP_NET_ADMIN", …
	NoNewPrivileges bool     `json:"no_new_privileges"`
	Dumpable        bool     `json:"dumpable"`     // other processes of its user may inspect it
	Seccomp         bool     `json:"seccomp"`      // system calls are limited to those needed
	LandlockABI     int      `json:"landlock_abi"` // 0: files are not restricted
}

// Reloaded is the result of reading the file again.
type Reloaded struct {
	Changed []string `json:"changed"` // one sentence each
	Refused []string `json:"refused"` // changes that need a restart, and why; the others have been applied
}

// Describe describes changes in words, in the order of the file's keys.
func Describe(c spec.Changes) Reloaded {
	r := Reloaded{Changed: []string{}, Refused: []string{}}
	say := func(format string, args ...any) { r.Changed = append(r.Changed, fmt.Sprintf(format, args...)) }
	for _, l := range []struct {
		format   string
		prefixes []netip.Prefix
	}{
		{"address %s removed", c.AddressesRemoved}, {"address %s added", c.AddressesAdded},
		{"route %s removed", c.RoutesRemoved}, {"route %s added", c.RoutesAdded},
		{"source %s removed", c.SourcesRemoved}, {"source %s added", c.SourcesAdded},
	} {
		for _, p := range l.prefixes {
			say(l.format, p)
		}
	}
	before, after := c.Old, c.New
	if before.SchedulerText() != after.SchedulerText() {
		say("scheduler is %s", after.SchedulerText())
	}
	if o := after.Reorder; o != before.Reorder {
		say("reorder is {tcp: %t, udp: %t, hold: %v}", o.TCP, o.UDP, o.Hold)
	}
	if m := after.MTUBytes; m != before.MTUBytes {
		say("mtu is %s", valueOr(m == 0, "as the smallest path allows", m))
	}
	if q := after.Queue; q != before.Queue {
		say("queue is %s", valueOr(q == 0, "chosen by the tunnel", q))
	}
	if d := after.Datapath; d != before.Datapath {
		say("datapath is %s", d)
	}
	if after.Port != before.Port {
		say("port is %d", after.Port)
	}
	for _, p := range c.PathsRemoved {
		say("path %s removed", p.Name)
	}
	for _, p := range c.PathsAdded {
		say("path %s added", p.Name)
	}
	for _, p := range c.PathsChanged {
		say("path %s changed: %s", p.New.Name, describePath(p))
	}
	for _, no := range c.Refused {
		r.Refused = append(r.Refused, no.String())
	}
	return r
}

// valueOr returns words if cond is true, and otherwise the value.
func valueOr(cond bool, words string, value any) string {
	if cond {
		return words
	}
	return fmt.Sprint(value)
}

func describePath(c spec.PathChange) string {
	var changes []string
	old, p := c.Old, c.New
	for _, f := range []struct {
		changed bool
		name    string
		value   any
	}{
		{old.Device != p.Device, "device", valueOr(p.Device == "", "none", p.Device)},
		{old.Local != p.Local, "local", valueOr(!p.Local.IsValid(), "the device's", p.Local)},
		{old.LocalPort != p.LocalPort, "port", p.LocalPort},
		{old.Remote != p.Remote, "remote", p.Remote},
		{old.RateBitsPerSec != p.RateBitsPerSec, "rate", valueOr(p.RateBitsPerSec == 0, "unlimited", rate.Text(p.RateBitsPerSec)+" bit/s")},
		{old.Weight != p.Weight, "weight", p.Weight},
		{old.MTUBytes != p.MTUBytes, "mtu", valueOr(p.MTUBytes == 0, "the device's", p.MTUBytes)},
		{old.Metered != p.Metered, "metered", p.Metered},
		{old.Down != p.Down, "state", valueOr(p.Down, "down", "up")},
	} {
		if f.changed {
			changes = append(changes, fmt.Sprintf("%s %v", f.name, f.value))
		}
	}
	return strings.Join(changes, ", ")
}
