package summary

import (
	"fmt"
	"maps"
	"slices"
	"strings"
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

// fleeting are facts that change by themselves.
var fleeting = []string{"net.netfilter.nf_conntrack_count"}

// environmentWarnings say in what two experiments and environments differ, a
// line for each fact.
func environmentWarnings(base, other map[string]any) []string {
	if base == nil || other == nil {
		return nil // Notes say that it is missing
	}
	out := experimentWarnings(base, other)
	if base["host"] == nil || other["host"] == nil {
		out = append(out, EnvironmentFile+" does not say which host it was: the machines may differ")
	}
	for _, f := range fingerprint {
		out = append(out, unlike(f.name, lookup(base, f.path), lookup(other, f.path))...)
	}
	return out
}

// lookup follows a dotted path; nil where it does not lead.
func lookup(in map[string]any, path string) any {
	var at any = in
	for key := range strings.SplitSeq(path, ".") {
		m, ok := at.(map[string]any)
		if !ok {
			return nil
		}
		at = m[key]
	}
	return at
}

// unlike compares two decoded JSON values, objects key by key.
func unlike(name string, a, b any) []string {
	x, isObject := a.(map[string]any)
	y, areObjects := b.(map[string]any)
	if isObject && areObjects {
		keys := maps.Clone(x)
		maps.Copy(keys, y)
		var out []string
		for _, k := range slices.Sorted(maps.Keys(keys)) {
			if !slices.Contains(fleeting, k) {
				out = append(out, unlike(name+" "+k, x[k], y[k])...)
			}
		}
		return out
	}
	if before, after := fact(a), fact(b); before != after {
		return []string{fmt.Sprintf("the environments differ: %s: %s → %s", name, before, after)}
	}
	return nil
}

// fact writes a decoded JSON value for people.
func fact(v any) string {
	switch v := v.(type) {
	case nil:
		return "unknown"
	case []any:
		words := make([]string, len(v))
		for i, w := range v {
			words[i] = fact(w)
		}
		return strings.Join(words, " ")
	}
	return fmt.Sprint(v)
}
