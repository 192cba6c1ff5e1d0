package summary

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"cleat/bench/cell"
)

// fingerprint are the facts of environment.json that change results, with their
// names for people.
var fingerprint = []struct{ path, name string }{
	{"lab", "lab"},
	{"processors", "processors used"},
	{"host.kernel.release", "kernel"},
	{"host.kernel.arch", "architecture"},
	{"host.kernel.preempt", "preemption"},
	{"host.kernel.accounting", "accounting of processor time"},
	{"host.kernel.parameters", "kernel parameters"},
	{"host.kernel.vulnerabilities", "mitigation"},
	{"host.cpu.model", "processor"},
	{"host.cpu.online", "number of processors"},
	{"host.cpu.allowed", "processors allowed"},
	{"host.cpu.quota_cores", "processor quota"},
	{"host.cpu.governors", "governor"},
	{"host.cpu.boost", "boost"},
	{"host.cpu.microcode", "microcode"},
	{"host.virtualization", "virtualization"},
	{"host.clock_source", "clock source"},
	{"host.distribution", "distribution"},
	{"host.uid", "uid"},
	{"host.sysctls", "sysctl"},
	{"host.versions", "version"},
}

// ignored are keys in which two runs may differ although their numbers mean the
// same: parts of an experiment (a cell that only one run has is a row of its own),
// and facts that change by themselves.
var ignored = []string{"seed", "repeat", "warmup", "title", "description", "networks", "net.netfilter.nf_conntrack_count"}

// maxDifferences is the most differences of two experiments that are listed.
const maxDifferences = 4

// environmentWarnings returns how two experiments and environments differ, a line
// for each fact.
func environmentWarnings(base, other map[string]any) []string {
	if base == nil || other == nil {
		return nil // Notes say that it is missing
	}
	out := experimentWarnings(base, other)
	if base["host"] == nil || other["host"] == nil {
		out = append(out, EnvironmentFile+" does not describe the host: the machines may differ")
	}
	for _, f := range fingerprint {
		for _, d := range differences(f.name, Lookup(base, f.path), Lookup(other, f.path)) {
			out = append(out, "the environments differ: "+d)
		}
	}
	return append(out, machineWarnings(base, other)...)
}

// machineWarnings returns how the machines of two runs differ beside the first, which is
// the host of its run.
func machineWarnings(base, other map[string]any) []string {
	a, _ := base["machines"].([]any)
	b, _ := other["machines"].([]any)
	if len(a) != len(b) {
		return []string{fmt.Sprintf("the environments differ: measured between machines: %d → %d", len(a), len(b))}
	}
	var out []string
	for i := 1; i < len(a); i++ {
		before, _ := a[i].(map[string]any)
		after, _ := b[i].(map[string]any)
		for _, f := range fingerprint {
			name := fmt.Sprintf("%s of machine %d", f.name, i+1)
			for _, d := range differences(name, Lookup(before, f.path), Lookup(after, f.path)) {
				out = append(out, "the environments differ: "+d)
			}
		}
	}
	return out
}

// experimentWarnings returns how the experiments of two runs differ. Runs that did
// not record theirs are told apart by the names of their presets.
func experimentWarnings(base, other map[string]any) []string {
	a, b := base["experiment"], other["experiment"]
	if a == nil || b == nil {
		a, b = map[string]any{"name": base["preset"]}, map[string]any{"name": other["preset"]}
	}
	diffs := differences("", a, b)
	if n := len(diffs); n > maxDifferences {
		diffs = append(diffs[:maxDifferences:maxDifferences], fmt.Sprintf("and %d more", n-maxDifferences))
	}
	if len(diffs) == 0 {
		return nil
	}
	return []string{"the experiments differ: " + strings.Join(diffs, "; ")}
}

// Lookup follows a dotted path in decoded JSON; nil where it leads nowhere.
func Lookup(in map[string]any, path string) any {
	var at any = in
	for key := range strings.SplitSeq(path, ".") {
		m, _ := at.(map[string]any)
		at = m[key]
	}
	return at
}

// differences compares two decoded JSON values, objects by key and lists of the
// same length by place. Each difference is "NAME: BEFORE → AFTER".
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
			if !slices.Contains(ignored, strings.ToLower(k)) {
				out = append(out, differences(strings.TrimSpace(name+" "+k), x[k], y[k])...)
			}
		}
	case isList && areLists && len(v) == len(w) && isNested(v) && isNested(w):
		for i := range v {
			out = append(out, differences(name+" "+strconv.Itoa(i+1), v[i], w[i])...)
		}
	case isList && areLists && (isNested(v) || isNested(w)):
		out = append(out, fmt.Sprintf("%s: %d → %d", name, len(v), len(w)))
	default:
		if before, after := valueText(name, a), valueText(name, b); before != after {
			out = append(out, name+": "+before+" → "+after)
		}
	}
	return out
}

func isNested(list []any) bool {
	return slices.ContainsFunc(list, func(v any) bool {
		_, isObject := v.(map[string]any)
		_, isList := v.([]any)
		return isObject || isList
	})
}

// valueText returns a decoded JSON value for people. Durations are in nanoseconds.
func valueText(name string, v any) string {
	text := fmt.Sprint(v)
	switch v := v.(type) {
	case nil:
		return cell.None
	case float64:
		if strings.HasSuffix(strings.ToLower(strings.TrimSuffix(name, "_ns")), "duration") {
			return time.Duration(v).String()
		}
	case []any:
		words := make([]string, len(v))
		for i, w := range v {
			words[i] = valueText("", w)
		}
		text = strings.Join(words, " ")
	}
	if text == "" {
		return cell.None
	}
	return text
}
