package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/summary"
)

// envSection is a part of environment.json: a heading and its facts.
type envSection struct {
	Title string
	Facts []fact
}

type fact struct{ Name, Value string }

// envFirst are the keys that come first at every level, in this order: they change
// a result most.
var envFirst = []string{
	"seed", "preset", "hostname", "experiment", "name", "title", "partial", "started", "taken", "ended", "finished", "duration", "duration_seconds", "repeat", "blocks", "warmup",
	"lab", "command", "processors", "flavour", "host", "kernel", "release", "accounting", "preempt", "distribution", "cpu", "model", "online", "cores", "smt", "governors", "governor",
	"virtualization", "memory", "load", "sysctls", "sysctl", "netfilter", "interfaces", "versions",
}

func envKeys(m map[string]any) []string {
	rank := func(k string) uint { return uint(slices.Index(envFirst, k)) } // the highest number for -1
	return slices.SortedFunc(maps.Keys(m), func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b))
	})
}

// environment arranges whatever environment.json holds: single facts first, then
// each object as a section of its own. Nested objects get dotted names.
func environment(env map[string]any) []envSection {
	top := envSection{Title: "Run"}
	var rest []envSection
	for _, k := range envKeys(env) {
		if k == "findings" || k == "networks" || k == "host" && len(machines(env)) > 0 {
			continue // shown elsewhere
		}
		if k == "machines" {
			for _, m := range machines(env) {
				rest = append(rest, envSection{"Machine " + lookup(m, "name"), facts("", m)})
			}
			continue
		}
		m, ok := env[k].(map[string]any)
		if line, isList := env[k].([]any); isList && k == "command" {
			var typed []string
			for _, arg := range line {
				typed = append(typed, scalar(arg))
			}
			top.Facts = append(top.Facts, fact{k, strings.Join(typed, " ")})
			continue
		}
		if !ok {
			top.Facts = append(top.Facts, facts(words(k), env[k])...)
			continue
		}
		section := envSection{Title: capital(words(k))}
		for _, inner := range envKeys(m) {
			if needsSection(m[inner]) {
				rest = append(rest, envSection{capital(words(k)) + ": " + words(inner), facts("", m[inner])})
				continue
			}
			section.Facts = append(section.Facts, facts(words(inner), m[inner])...)
		}
		if len(section.Facts) > 0 {
			at := slices.IndexFunc(rest, func(s envSection) bool { return strings.HasPrefix(s.Title, section.Title+": ") })
			if at < 0 {
				at = len(rest)
			}
			rest = slices.Insert(rest, at, section)
		}
	}
	if len(top.Facts) > 0 {
		rest = append([]envSection{top}, rest...)
	}
	return rest
}

// machines returns the machines between which was measured; nil if one had both ends.
func machines(env map[string]any) []map[string]any {
	list, _ := env["machines"].([]any)
	var out []map[string]any
	for _, e := range list {
		if m, ok := e.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}

// needsSection reports whether a value inside a section is large enough for a
// section of its own.
func needsSection(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		return len(v) > 6
	case []any:
		return !isSimple(v)
	}
	return false
}

// finding is a setting of the host that distorts measurements or breaks networking.
type finding struct{ Severity, Title, Detail, Fix string }

// findings returns what `cleat doctor` reports about the host, without what is in
// order.
func findings(env map[string]any) []finding {
	list, _ := env["findings"].([]any)
	var out []finding
	for _, e := range list {
		m, _ := e.(map[string]any)
		text := func(key string) string { s, _ := m[key].(string); return s }
		if f := (finding{text("severity"), text("title"), text("detail"), text("fix")}); f.Title != "" && f.Severity != "ok" {
			out = append(out, f)
		}
	}
	return out
}

// pathFacts is what is known of one network's path.
type pathFacts struct{ Network, LinkMTU, PathMTU, Notes string }

// paths returns the facts of each network's path. The keys of "networks" are
// "NETWORK" or "NETWORK (detail)".
func paths(env map[string]any) []pathFacts {
	networks, _ := env["networks"].(map[string]any)
	var out []pathFacts
	for _, k := range slices.Sorted(maps.Keys(networks)) {
		m, _ := networks[k].(map[string]any)
		size := func(key string) string {
			if x, ok := m[key].(float64); ok && x > 0 {
				return scalar(x) + " B"
			}
			return cell.None
		}
		p := pathFacts{Network: k, LinkMTU: size("link_mtu_bytes"), PathMTU: size("path_mtu_bytes")}
		if notes, _ := m["notes"].([]any); len(notes) > 0 {
			p.Notes = joined(notes)
		}
		out = append(out, p)
	}
	name := func(p pathFacts) string { n, _, _ := strings.Cut(p.Network, " ("); return n }
	slices.SortStableFunc(out, func(a, b pathFacts) int { return catalog.Compare(name(a), name(b)) })
	return out
}

// words returns a key for people. Sysctls and kernel options stay as they are.
func words(key string) string {
	if strings.Contains(key, ".") || key == strings.ToUpper(key) {
		return key
	}
	return strings.ReplaceAll(key, "_", " ")
}

// facts flattens a value into facts whose names start with name.
func facts(name string, v any) []fact {
	switch v := v.(type) {
	case nil:
		return nil
	case map[string]any:
		if line, ok := oneLine(name, v); ok {
			return []fact{{name, line}}
		}
		var out []fact
		for _, k := range envKeys(v) {
			inner := words(k)
			if name != "" {
				inner = name + " · " + inner
			}
			out = append(out, facts(inner, v[k])...)
		}
		return out
	case []any:
		if isSimple(v) {
			return []fact{{name, joined(v)}}
		}
		var out []fact
		for i, e := range v {
			label := strconv.Itoa(i + 1)
			if m, ok := e.(map[string]any); ok {
				if s, ok := m["name"].(string); ok && s != "" {
					label = s
					m = maps.Clone(m)
					delete(m, "name")
					e = m
				}
			}
			out = append(out, facts(strings.TrimPrefix(name+" · "+label, " · "), e)...)
		}
		return out
	}
	return []fact{{name, scalar(v)}}
}

// oneLine returns an object on one line where that reads better: switches as what
// is on and off, and flat objects that are nested deeply.
func oneLine(name string, m map[string]any) (string, bool) {
	var on, off, all []string
	for _, k := range envKeys(m) {
		switch v := m[k].(type) {
		case bool:
			if v {
				on = append(on, words(k))
			} else {
				off = append(off, words(k))
			}
		case map[string]any, []any:
			return "", false
		}
		all = append(all, words(k)+" "+scalar(m[k]))
	}
	switch {
	case len(on)+len(off) == len(m) && len(m) > 3:
		var parts []string
		if len(on) > 0 {
			parts = append(parts, "on: "+strings.Join(on, ", "))
		}
		if len(off) > 0 {
			parts = append(parts, "off: "+strings.Join(off, ", "))
		}
		return strings.Join(parts, "; "), true
	case strings.Contains(name, " · ") && len(m) > 0:
		return strings.Join(all, ", "), true
	}
	return "", false
}

func isSimple(list []any) bool {
	return !slices.ContainsFunc(list, func(e any) bool {
		_, isMap := e.(map[string]any)
		l, isList := e.([]any)
		return isMap || isList && !isSimple(l)
	})
}

func joined(list []any) string {
	var parts []string
	for _, e := range list {
		if l, ok := e.([]any); ok {
			parts = append(parts, "["+joined(l)+"]")
			continue
		}
		parts = append(parts, scalar(e))
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

func scalar(v any) string {
	switch v := v.(type) {
	case bool:
		if v {
			return "yes"
		}
		return "no"
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	case string:
		if v == "" {
			return cell.None
		}
		if t, err := time.Parse(time.RFC3339Nano, v); err == nil {
			return t.UTC().Format("2006-01-02 15:04:05 UTC")
		}
		return v
	}
	return fmt.Sprint(v)
}

// lookup returns the text or number at a dotted path; "" if there is none.
func lookup(env map[string]any, path string) string {
	switch v := summary.Lookup(env, path).(type) {
	case string, float64:
		return scalar(v)
	}
	return ""
}
