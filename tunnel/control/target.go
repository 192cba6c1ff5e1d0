package control

import (
	"fmt"
	"time"

	"cleat/internal/rate"
	"cleat/tunnel"
	"cleat/tunnel/spec"
)

// Target is a running tunnel. Its methods are called by several goroutines at
// once. What their errors wrap decides what the client gets: tunnel.ErrNoPath,
// ErrPathTaken and ErrTooMany, *spec.PathError and *FileError; of any other it gets
// the text. A Hint() string method of theirs, or of what they wrap, reaches it, too.
type Target interface {
	Info() Info
	Status() tunnel.Status
	// SetPath has a path used, or not.
	SetPath(name string, up bool) error
	// AddPath takes a further path in. Ports that are 0 are to be the tunnel's, and
	// what the path says is to be checked: spec.Tunnel.CheckPath does both.
	AddPath(spec.Path) error
	// RemovePath takes a path out.
	RemovePath(name string) error
	// Reload reads the tunnel's file again and does what it says.
	Reload() (Reloaded, error)
	// Stop ends the tunnel. It is called once the client has its answer, and must not
	// wait for Serve.
	Stop()
}

// Info is what a tunnel says about itself.
type Info struct {
	Name      string         `json:"name"`
	Device    string         `json:"device"` // the TUN device
	File      string         `json:"file"`   // that it was read from, an absolute path; "": standard input
	PID       int            `json:"pid"`
	Started   time.Time      `json:"started"`
	Form      spec.Form      `json:"form"`      // that was asked for
	Scheduler spec.Scheduler `json:"scheduler"` // in use
	Version   string         `json:"version"`   // of cleat
	Sealed    Sealed         `json:"sealed"`
}

// Sealed is what the process may still do, of what programs of its user may.
type Sealed struct {
	Capabilities    []string `json:"capabilities"` // "CAP_NET_ADMIN", …
	NoNewPrivileges bool     `json:"no_new_privileges"`
	Dumpable        bool     `json:"dumpable"`     // others of its user may look into it
	Seccomp         bool     `json:"seccomp"`      // system calls are limited to those needed
	LandlockABI     int      `json:"landlock_abi"` // 0: the kernel does not restrict files
}

// Reloaded says what came of reading a file again.
type Reloaded struct {
	Changed []string `json:"changed"` // one sentence each
	Refused []string `json:"refused"` // what needs a new start, and why; the rest holds all the same
}

// Describe says in words what a changed file asked for, in the file's order of keys.
func Describe(c spec.Changes) Reloaded {
	r := Reloaded{Changed: []string{}, Refused: []string{}}
	say := func(format string, args ...any) { r.Changed = append(r.Changed, fmt.Sprintf(format, args...)) }
	for _, p := range c.AddressesRemoved {
		say("address %s removed", p)
	}
	for _, p := range c.AddressesAdded {
		say("address %s added", p)
	}
	for _, p := range c.RoutesRemoved {
		say("route %s removed", p)
	}
	for _, p := range c.RoutesAdded {
		say("route %s added", p)
	}
	for _, p := range c.SourcesRemoved {
		say("source %s removed", p)
	}
	for _, p := range c.SourcesAdded {
		say("source %s added", p)
	}
	if s := c.Scheduling; s != nil {
		say("scheduler is %s", s)
	}
	if o := c.Reorder; o != nil {
		say("reorder is {tcp: %t, udp: %t, hold: %v}", o.TCP, o.UDP, o.Hold)
	}
	if m := c.MTUBytes; m != nil {
		say("mtu is %s", orWords(*m == 0, "what the smallest path leaves", *m))
	}
	if q := c.Queue; q != nil {
		say("queue is %s", orWords(*q == 0, "the tunnel's choice", *q))
	}
	if p := c.Port; p != nil {
		say("port is %d", *p)
	}
	for _, p := range c.PathsRemoved {
		say("path %s removed", p.Name)
	}
	for _, p := range c.PathsAdded {
		say("path %s added", p.Name)
	}
	for _, p := range c.PathsChanged {
		say("path %s changed%s", p.New.Name, describePath(p))
	}
	for _, no := range c.Refused {
		r.Refused = append(r.Refused, no.String())
	}
	return r
}

// orWords is a value, or words in its place.
func orWords(is bool, words string, value any) string {
	if is {
		return words
	}
	return fmt.Sprint(value)
}

// describePath says what is another about a path.
func describePath(c spec.PathChange) string {
	text := ""
	was, is := c.Old, c.New
	for _, f := range []struct {
		changed bool
		what    string
		value   any
	}{
		{was.Device != is.Device, "device", orWords(is.Device == "", "none", is.Device)},
		{was.Local != is.Local, "local", orWords(!is.Local.IsValid(), "the device's", is.Local)},
		{was.LocalPort != is.LocalPort, "port", is.LocalPort},
		{was.Remote != is.Remote, "remote", is.Remote},
		{was.RateBitsPerSec != is.RateBitsPerSec, "rate", orWords(is.RateBitsPerSec == 0, "without limit", rate.Text(is.RateBitsPerSec)+" bit/s")},
		{was.Weight != is.Weight, "weight", is.Weight},
		{was.MTUBytes != is.MTUBytes, "mtu", orWords(is.MTUBytes == 0, "the device's", is.MTUBytes)},
		{was.Down != is.Down, "state", orWords(is.Down, "down", "up")},
	} {
		if f.changed {
			sep := ", "
			if text == "" {
				sep = ": "
			}
			text += fmt.Sprintf("%s%s %v", sep, f.what, f.value)
		}
	}
	return text
}
