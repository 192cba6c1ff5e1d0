package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// envSection is a part of environment.json as a heading and its facts.
type envSection struct {
	Title string
	Facts []fact
}

type fact struct{ Name, Value string }

// envFirst are the keys that come before the others, at every level, in this
// order: what changes a result most.
var envFirst = []string{
	"seed", "preset", "experiment", "name", "title", "partial", "started", "taken", "ended", "finished", "duration", "duration_seconds", "repeat", "blocks", "warmup",
	"lab", "command", "processors", "findings", "flavour", "host", "kernel", "release", "accounting", "preempt", "distribution", "cpu", "model", "online", "cores", "smt", "governors", "governor",
	"virtualization", "memory", "load", "sysctls", "sysctl", "netfilter", "interfaces", "versions",
}

func envRank(k string) int {
	if i := slices.Index(envFirst, k); i >= 0 {
		return i
	}
	return len(envFirst)
}

func envKeys(m map[string]any) []string {
	return slices.SortedFunc(maps.Keys(m), func(a, b string) int {
		return cmp.Or(cmp.Compare(envRank(a), envRank(b)), cmp.Compare(a, b))
	})
}

// environment arranges whatever environment.json holds: single facts first, then
// each object as a section of its own; what lies deeper gets dotted names.
func environment(env map[string]any) []envSection {
	top := envSection{Title: "Run"}
	var rest []envSection
	for _, k := range envKeys(env) {
		m, ok := env[k].(map[string]any)
		if !ok {
			top.Facts = append(top.Facts, facts(words(k), env[k])...)
			continue
		}
		section := envSection{Title: capital(words(k))}
		for _, inner := range envKeys(m) {
			if sub, ok := m[inner].(map[string]any); ok && len(sub) > 6 {
				rest = append(rest, envSection{capital(words(k)) + ": " + words(inner), facts("", sub)})
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

func words(key string) string {
	if strings.Contains(key, ".") { // a sysctl's name is not prose
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
		if simple(v) {
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

func simple(list []any) bool {
	return !slices.ContainsFunc(list, func(e any) bool {
		_, isMap := e.(map[string]any)
		l, isList := e.([]any)
		return isMap || isList && !simple(l)
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
			return none
		}
		return v
	}
	return fmt.Sprint(v)
}

// lookup finds the first of several dotted paths that holds a text or a number.
func lookup(env map[string]any, paths ...string) string {
	for _, path := range paths {
		var v any = env
		for _, k := range strings.Split(path, ".") {
			m, _ := v.(map[string]any)
			v = m[k]
		}
		switch v.(type) {
		case string, float64, int, uint64, int64:
			return scalar(v)
		}
	}
	return ""
}
