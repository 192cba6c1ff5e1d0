package spec

import (
	"fmt"
	"net/netip"
	"slices"
)

// Changes are the changes that a changed file makes to a running tunnel.
type Changes struct {
	PathsAdded       []Path
	PathsRemoved     []Path
	PathsChanged     []PathChange // including those of paths that use Settings.Port
	AddressesAdded   []netip.Prefix
	AddressesRemoved []netip.Prefix
	RoutesAdded      []netip.Prefix
	RoutesRemoved    []netip.Prefix
	SourcesAdded     []netip.Prefix // of Tunnel.Sources
	SourcesRemoved   []netip.Prefix
	Old, New         Settings

	// Refused are the changes that need a restart. The other changes apply regardless.
	Refused []Refusal
}

// SchedulerText returns the scheduler, and how many copies it sends if it sends any.
func (s Settings) SchedulerText() string {
	switch {
	case s.Scheduler != Duplicate:
		return string(s.Scheduler)
	case s.Copies == 0:
		return string(s.Scheduler) + " on all paths"
	}
	return fmt.Sprintf("%s on %d paths", s.Scheduler, s.Copies)
}

// PathChange is a change of the path with a name.
type PathChange struct {
	Old, New Path
	// Rebind means that the path needs another socket: its device, an address or a port
	// has changed. Otherwise only rate, weight, mtu, metered or state have.
	Rebind bool
}

// Refusal is a setting that can't change while the tunnel runs.
type Refusal struct {
	Setting  string // key in the file
	Old, New string // as in the file; never a private key
	Reason   string
}

// String returns the refusal as a sentence.
func (r Refusal) String() string {
	return fmt.Sprintf("%s can't change from %s to %s without a restart: %s", r.Setting, r.Old, r.New, r.Reason)
}

// IsEmpty reports whether nothing changes.
func (c Changes) IsEmpty() bool {
	lists := len(c.PathsAdded) + len(c.PathsRemoved) + len(c.PathsChanged) + len(c.AddressesAdded) +
		len(c.AddressesRemoved) + len(c.RoutesAdded) + len(c.RoutesRemoved) + len(c.SourcesAdded) + len(c.SourcesRemoved) + len(c.Refused)
	return lists == 0 && c.Old == c.New
}

// ApplySettings applies all changes except those of paths to a tunnel.
func (c Changes) ApplySettings(t *Tunnel) {
	t.Addresses = slices.Concat(without(t.Addresses, c.AddressesRemoved), c.AddressesAdded)
	t.Routes = slices.Concat(without(t.Routes, c.RoutesRemoved), c.RoutesAdded)
	t.Sources = slices.Concat(without(t.Sources, c.SourcesRemoved), c.SourcesAdded)
	t.Settings = c.New
}

// Compare returns the changes from one tunnel to another. Paths are identified by name;
// their order means nothing.
func Compare(before, after *Tunnel) Changes {
	c := Changes{Old: before.Settings, New: after.Settings}
	c.AddressesRemoved, c.AddressesAdded = diff(before.Addresses, after.Addresses)
	c.RoutesRemoved, c.RoutesAdded = diff(before.Routes, after.Routes)
	c.SourcesRemoved, c.SourcesAdded = diff(before.Sources, after.Sources)
	c.comparePaths(before.Paths, after.Paths)
	c.refuse(before, after)
	return c
}

// diff returns the elements that are in one list only.
func diff(before, after []netip.Prefix) (removed, added []netip.Prefix) {
	return without(before, after), without(after, before)
}

func without(list, other []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(list), func(p netip.Prefix) bool { return slices.Contains(other, p) })
}

func (c *Changes) comparePaths(before, after []Path) {
	for _, p := range before {
		if pathNamed(after, p.Name) == nil {
			c.PathsRemoved = append(c.PathsRemoved, p)
		}
	}
	for _, p := range after {
		switch was := pathNamed(before, p.Name); {
		case was == nil:
			c.PathsAdded = append(c.PathsAdded, p)
		case *was != p:
			c.PathsChanged = append(c.PathsChanged, PathChange{Old: *was, New: p, Rebind: was.socket() != p.socket()})
		}
	}
}

func pathNamed(paths []Path, name string) *Path {
	i := slices.IndexFunc(paths, func(p Path) bool { return p.Name == name })
	if i < 0 {
		return nil
	}
	return &paths[i]
}

// socket returns the part of a path that determines its socket.
func (p Path) socket() Path {
	return Path{Device: p.Device, Local: p.Local, LocalPort: p.LocalPort, Remote: p.Remote}
}

// refuse collects the settings that can't change. The tunnel's port can: it belongs to
// its paths.
func (c *Changes) refuse(before, after *Tunnel) {
	for _, s := range []struct{ setting, before, after, why string }{
		{"name", before.Name, after.Name, "another name is another tunnel"},
		{"device", before.Device, after.Device, "connections and routes are tied to the device"},
		{"form", string(before.Form), string(after.Form), "both ends have agreed on it"},
		{"compat", before.Compat.String(), after.Compat.String(), "the other end would not recognize the packets"},
		{"metrics", before.Metrics.String(), after.Metrics.String(), "its socket is open already"},
		{"key", before.Key.String(), after.Key.String(), "it would lock out an end that still has the old key"},
	} {
		if s.before != s.after {
			c.Refused = append(c.Refused, Refusal{s.setting, s.before, s.after, s.why})
		}
	}
}

// String returns the public keys of both ends, or "none".
func (k *Key) String() string {
	if k == nil {
		return "none"
	}
	return fmt.Sprintf("%s with peer %s", k.Private.Public(), k.Peer)
}

// String returns the form as in a file.
func (f CompatForm) String() string {
	if f.HasKey {
		return fmt.Sprintf("{key: %d, sequence: %t}", f.Key, f.Sequence)
	}
	return fmt.Sprintf("{sequence: %t}", f.Sequence)
}

// String returns the address as in a file, or "none".
func (m Metrics) String() string {
	if m.Address == "" {
		return "none"
	}
	return m.Address
}
