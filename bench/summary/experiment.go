package summary

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// unasked are parts of an experiment in which two runs may differ without any
// number meaning something else. A cell that only one has is a row of its own.
var unasked = []string{"seed", "repeat", "warmup", "title", "description", "networks"}

// mostDifferences is how many differences of two experiments are listed.
const mostDifferences = 4

// experimentWarnings say in what the experiments of two runs differ. Runs that
// do not keep theirs are told apart by the name of their preset.
func experimentWarnings(base, other map[string]any) []string {
	a, b := base["experiment"], other["experiment"]
	if a == nil || b == nil {
		a, b = map[string]any{"name": base["preset"]}, map[string]any{"name": other["preset"]}
	}
	diffs := differences("", a, b)
	if n := len(diffs); n > mostDifferences {
		diffs = append(diffs[:mostDifferences:mostDifferences], fmt.Sprintf("and %d more", n-mostDifferences))
	}
	if len(diffs) == 0 {
		return nil
	}
	return []string{"the experiments differ: " + strings.Join(diffs, "; ")}
}

// differences compares two decoded JSON values, objects by key and lists of the
// same length by place.
func differences(name string, a, b any) []string {
	x, isObject := a.(map[string]any)
	y, areObjects := b.(map[string]any)
	v, isList := a.([]any)
	w, areLists := b.([]any)
	var out []string
	switch {
	case isObject && areObjects:
		keys := maps.Clone(x)
		maps.Copy(keys, y)
		for _, k := range slices.Sorted(maps.Keys(keys)) {
			if !slices.Contains(unasked, strings.ToLower(k)) {
				out = append(out, differences(strings.TrimSpace(name+" "+k), x[k], y[k])...)
			}
		}
	case isList && areLists && len(v) == len(w) && nested(v) && nested(w):
		for i := range v {
			out = append(out, differences(name+" "+strconv.Itoa(i+1), v[i], w[i])...)
		}
	case isList && areLists && (nested(v) || nested(w)):
		out = append(out, fmt.Sprintf("%s: %d → %d", name, len(v), len(w)))
	default:
		if before, after := setting(name, a), setting(name, b); before != after {
			out = append(out, name+": "+before+" → "+after)
		}
	}
	return out
}

// nested tells whether a list holds more than single values.
func nested(list []any) bool {
	return slices.ContainsFunc(list, func(v any) bool {
		_, isObject := v.(map[string]any)
		_, isList := v.([]any)
		return isObject || isList
	})
}

// setting writes one value of an experiment; durations are in nanoseconds.
func setting(name string, v any) string {
	if ns, ok := v.(float64); ok && strings.HasSuffix(strings.ToLower(strings.TrimSuffix(name, "_ns")), "duration") {
		return time.Duration(ns).String()
	}
	switch v := v.(type) {
	case nil:
		return "not set"
	case string:
		if v == "" {
			return "not set"
		}
	case []any:
		if len(v) == 0 {
			return "not set"
		}
	}
	return fact(v)
}
