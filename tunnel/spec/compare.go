package spec

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"cleat/tunnel/secure"
)

// Changes is what a changed file asks of a running tunnel. Where a pointer is
// nil, or a list empty, all stays as it is.
type Changes struct {
	PathsAdded       []Path
	PathsRemoved     []Path
	PathsChanged     []PathChange
	AddressesAdded   []netip.Prefix
	AddressesRemoved []netip.Prefix
	RoutesAdded      []netip.Prefix
	RoutesRemoved    []netip.Prefix
	SourcesAdded     []netip.Prefix // of Tunnel.Sources
	SourcesRemoved   []netip.Prefix
	Scheduling       *Scheduling
	Reorder          *Reorder
	Queue            *time.Duration
	MTUBytes         *int    // 0: what the smallest path leaves
	Port             *uint16 // of paths to come; those that change with it are among PathsChanged

	// Refused is what a tunnel can't have without being started again. The rest
	// holds all the same.
	Refused []Refusal
}

// Scheduling is a scheduler with what belongs to it.
type Scheduling struct {
	Scheduler Scheduler
	Copies    int // see Tunnel.Copies
}

// String is the scheduler, with how many copies it sends if it sends any.
func (s Scheduling) String() string {
	switch {
	case s.Scheduler != Duplicate:
		return string(s.Scheduler)
	case s.Copies == 0:
		return string(s.Scheduler) + " on all paths"
	}
	return fmt.Sprintf("%s on %d paths", s.Scheduler, s.Copies)
}

// PathChange is a path of the same name that is another now.
type PathChange struct {
	Old, New Path
	// Rebind tells whether it takes a socket of its own: device, an address or a
	// port is another. Else rate, weight, mtu or state are.
	Rebind bool
}

// Refusal is a setting that can't change while the tunnel runs.
type Refusal struct {
	Setting  string // the key in the file
	Old, New string // as a person writes them; never a private key
	Why      string
}

// String is the refusal as a sentence.
func (r Refusal) String() string {
	return fmt.Sprintf("%s stays %s, not %s: %s", r.Setting, r.Old, r.New, r.Why)
}

// None tells whether nothing is asked for at all.
func (c Changes) None() bool {
	lists := len(c.PathsAdded) + len(c.PathsRemoved) + len(c.PathsChanged) + len(c.AddressesAdded) +
		len(c.AddressesRemoved) + len(c.RoutesAdded) + len(c.RoutesRemoved) + len(c.SourcesAdded) + len(c.SourcesRemoved) + len(c.Refused)
	return lists == 0 && c.Scheduling == nil && c.Reorder == nil && c.Queue == nil && c.MTUBytes == nil && c.Port == nil
}

// Tune does to a tunnel what is asked for, except for its paths.
func (c Changes) Tune(t *Tunnel) {
	t.Addresses = slices.Concat(without(t.Addresses, c.AddressesRemoved), c.AddressesAdded)
	t.Routes = slices.Concat(without(t.Routes, c.RoutesRemoved), c.RoutesAdded)
	t.Sources = slices.Concat(without(t.Sources, c.SourcesRemoved), c.SourcesAdded)
	if s := c.Scheduling; s != nil {
		t.Scheduler, t.Copies = s.Scheduler, s.Copies
	}
	t.Reorder = valueOr(c.Reorder, t.Reorder)
	t.Queue = valueOr(c.Queue, t.Queue)
	t.MTUBytes = valueOr(c.MTUBytes, t.MTUBytes)
	t.Port = valueOr(c.Port, t.Port)
}

// valueOr is a value that has changed, or the one before.
func valueOr[T any](changed *T, before T) T {
	if changed == nil {
		return before
	}
	return *changed
}

// Compare tells what leads from one tunnel to another. Paths are the same when
// their names are; their order means nothing.
func Compare(before, after *Tunnel) Changes {
	var c Changes
	c.AddressesRemoved, c.AddressesAdded = differ(before.Addresses, after.Addresses)
	c.RoutesRemoved, c.RoutesAdded = differ(before.Routes, after.Routes)
	c.SourcesRemoved, c.SourcesAdded = differ(before.Sources, after.Sources)
	c.comparePaths(before.Paths, after.Paths)
	c.Scheduling = changed(Scheduling{before.Scheduler, before.Copies}, Scheduling{after.Scheduler, after.Copies})
	c.Reorder = changed(before.Reorder, after.Reorder)
	c.Queue = changed(before.Queue, after.Queue)
	c.MTUBytes = changed(before.MTUBytes, after.MTUBytes)
	c.Port = changed(before.Port, after.Port)
	c.refuse(before, after)
	return c
}

// changed is a value that is no longer the old one.
func changed[T comparable](before, after T) *T {
	if before == after {
		return nil
	}
	return &after
}

// differ tells what is in one list alone.
func differ(before, after []netip.Prefix) (removed, added []netip.Prefix) {
	return without(before, after), without(after, before)
}

func without(list, other []netip.Prefix) []netip.Prefix {
	var left []netip.Prefix
	for _, p := range list {
		if !slices.Contains(other, p) {
			left = append(left, p)
		}
	}
	return left
}

func (c *Changes) comparePaths(before, after []Path) {
	for _, p := range before {
		if named(after, p.Name) == nil {
			c.PathsRemoved = append(c.PathsRemoved, p)
		}
	}
	for _, p := range after {
		switch was := named(before, p.Name); {
		case was == nil:
			c.PathsAdded = append(c.PathsAdded, p)
		case *was != p:
			c.PathsChanged = append(c.PathsChanged, PathChange{Old: *was, New: p, Rebind: was.socket() != p.socket()})
		}
	}
}

func named(paths []Path, name string) *Path {
	i := slices.IndexFunc(paths, func(p Path) bool { return p.Name == name })
	if i < 0 {
		return nil
	}
	return &paths[i]
}

// socket is the part of a path that its socket is made of.
func (p Path) socket() Path {
	return Path{Device: p.Device, Local: p.Local, LocalPort: p.LocalPort, Remote: p.Remote}
}

// refuse collects what can't change. The tunnel's port can: it is one of each
// path's.
func (c *Changes) refuse(before, after *Tunnel) {
	for _, s := range []struct{ setting, before, after, why string }{
		{"name", before.Name, after.Name, "it is the tunnel's own: another name is another tunnel"},
		{"device", before.Device, after.Device, "connections and routes are tied to the device"},
		{"form", string(before.Form), string(after.Form), "both ends have agreed on it"},
		{"compat", before.Compat.String(), after.Compat.String(), "the other end would take packets for somebody else's"},
		{"metrics", before.Metrics.String(), after.Metrics.String(), "its socket is open"},
	} {
		if s.before != s.after {
			c.Refused = append(c.Refused, Refusal{s.setting, s.before, s.after, s.why})
		}
	}
	if was, is := before.Key.identity(), after.Key.identity(); was != is {
		c.Refused = append(c.Refused, Refusal{"key", was.String(), is.String(), "whoever has the old one would be shut out in the middle"})
	}
}

// identity is who both ends are.
type identity struct{ own, peer secure.PublicKey }

// identity is the zero identity without a key.
func (k *Key) identity() identity {
	if k == nil {
		return identity{}
	}
	return identity{k.Private.Public(), k.Peer}
}

// String names both public keys.
func (i identity) String() string {
	if i == (identity{}) {
		return "none"
	}
	return fmt.Sprintf("%s with peer %s", i.own, i.peer)
}

// String is the form as in a file.
func (f CompatForm) String() string {
	if f.HasKey {
		return fmt.Sprintf("{key: %d, sequence: %t}", f.Key, f.Sequence)
	}
	return fmt.Sprintf("{sequence: %t}", f.Sequence)
}

// String is the place as in a file, "none" where there is none.
func (m Metrics) String() string {
	if m.Address == "" {
		return "none"
	}
	return m.Address
}
