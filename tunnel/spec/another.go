package spec

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"cleat/internal/yamlfile"
)

// PathError says that a path can't be one of a tunnel's.
type PathError struct {
	Findings []Finding // errors alone; their lines mean nothing
}

// Error is all that is wrong with it.
func (e *PathError) Error() string {
	var all []string
	for _, f := range e.Findings {
		all = append(all, Plain(f.Message))
	}
	return strings.Join(all, "; ")
}

// Hint is what to do about it, "" where nobody knows.
func (e *PathError) Hint() string {
	var all []string
	for _, f := range e.Findings {
		if f.Hint != "" && !slices.Contains(all, Plain(f.Hint)) {
			all = append(all, Plain(f.Hint))
		}
	}
	return strings.Join(all, "\n")
}

// CheckPath completes a path that a tunnel is to have besides, and checks it as if it
// stood in the tunnel's file: where LocalPort, Remote's port or Weight are 0 they get
// their defaults. The error is a *PathError. Whether its name is free, and whether
// there is room for one more, is not asked.
func (t *Tunnel) CheckPath(p Path) (Path, error) {
	var g given
	var found findings
	text, err := p.text()
	if err != nil {
		return Path{}, err
	}
	// What is written goes through the checks of what is read, so that there is one set
	// of them.
	var problems []yamlfile.Problem
	found.doc, problems = yamlfile.Read(text, &g)
	found.read(problems)
	if len(g.Paths) == 1 {
		with := *t
		with.Paths = nil
		c := checker{findings: &found, given: &g, t: &with}
		p = c.checkPath(pathAt(0), 0, g.Paths[0])
		if c.missing(pathAt(0) + ".name") {
			c.wrong(pathAt(0)+".name", wantName(maxPathName), "name is missing")
		}
		c.checkAmong(pathAt(0), p, t.Paths)
	}
	errs := slices.DeleteFunc(found.sorted(), func(f Finding) bool { return f.Severity != Error })
	if len(errs) > 0 {
		return Path{}, &PathError{errs}
	}
	return p, nil
}

// text is a file with the path alone. Only what isn't zero stands there.
func (p Path) text() ([]byte, error) {
	written := map[string]any{"state": stateUp}
	if p.Down {
		written["state"] = stateDown
	}
	if p.Name != "" {
		written["name"] = p.Name
	}
	if p.Device != "" {
		written["device"] = p.Device
	}
	if p.Local.IsValid() {
		written["local"] = p.Local.String()
	}
	if p.LocalPort != 0 {
		written["port"] = p.LocalPort
	}
	switch {
	case !p.Remote.Addr().IsValid():
	case p.Remote.Port() == 0:
		written["remote"] = p.Remote.Addr().String()
	default:
		written["remote"] = p.Remote.String()
	}
	if p.RateBitsPerSec != 0 {
		written["rate"] = fmt.Sprint(p.RateBitsPerSec)
	}
	if p.Weight != 0 {
		written["weight"] = p.Weight
	}
	if p.MTUBytes != 0 {
		written["mtu"] = p.MTUBytes
	}
	text, err := json.Marshal(map[string]any{"paths": []any{written}}) // which is YAML
	if err != nil {
		return nil, fmt.Errorf("write path %q: %w", p.Name, err)
	}
	return text, nil
}
