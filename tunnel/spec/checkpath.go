package spec

import (
	"fmt"
	"slices"
	"strings"

	"cleat/internal/yamlfile"
)

// PathError is returned for a path that a tunnel can't have.
type PathError struct {
	Findings []Finding // errors only; they have no line and column
}

// Error returns all that is wrong with the path.
func (e *PathError) Error() string {
	var messages []string
	for _, f := range e.Findings {
		messages = append(messages, Plain(f.Message))
	}
	return strings.Join(messages, "; ")
}

// Hint returns what to do about it, or "".
func (e *PathError) Hint() string {
	var hints []string
	for _, f := range e.Findings {
		if hint := Plain(f.Hint); hint != "" && !slices.Contains(hints, hint) {
			hints = append(hints, hint)
		}
	}
	return strings.Join(hints, "\n")
}

// CheckPath checks a path that is to be added to the tunnel, and fills in defaults for a
// LocalPort, a port of Remote or a Weight of 0. The error is a *PathError. CheckPath does not
// check whether the name is unused and whether there is room for another path.
func (t *Tunnel) CheckPath(p Path) (Path, error) {
	raw := p.raw()
	found := findings{doc: onePath{
		"name": raw.Name != "", "device": raw.Device != "", "local": raw.Local != "", "remote": raw.Remote != "",
		"port": raw.Port != 0, "rate": raw.Rate != "", "weight": raw.Weight != 0, "mtu": raw.MTU != 0, "state": true, "metered": true,
	}}
	c := checker{findings: &found, t: t}
	p = c.checkPath("", 0, raw)
	if c.isMissing(".name") {
		c.reject(".name", nameSyntax(maxPathName), "name is missing")
	}
	c.checkAgainst("", p, t.Paths)
	errs := slices.DeleteFunc(found.all, func(f Finding) bool { return f.Severity != Error })
	if len(errs) > 0 {
		return Path{}, &PathError{errs}
	}
	return p, nil
}

// raw returns the path as it would be written in a file. Zero values are left out.
func (p Path) raw() rawPath {
	r := rawPath{Name: p.Name, Device: p.Device, Port: int(p.LocalPort), Weight: p.Weight, MTU: p.MTUBytes, State: stateUp, Metered: p.Metered}
	if p.Local.IsValid() {
		r.Local = p.Local.String()
	}
	if p.Remote.Port() != 0 {
		r.Remote = p.Remote.String()
	} else if p.Remote.Addr().IsValid() {
		r.Remote = p.Remote.Addr().String()
	}
	if p.RateBitsPerSec != 0 {
		r.Rate = fmt.Sprint(p.RateBitsPerSec)
	}
	if p.Down {
		r.State = stateDown
	}
	return r
}

// onePath is the document of a single path that is in no file: the keys that are set. Key
// ".name" is that of its name.
type onePath map[string]bool

func (d onePath) Given(key string) bool     { return d[strings.TrimPrefix(key, ".")] }
func (onePath) Wrong(string) bool           { return false }
func (onePath) Place(string) yamlfile.Place { return yamlfile.Place{} }
