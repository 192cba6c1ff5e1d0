package summary

import (
	"strings"
	"testing"
)

func TestCompareExperiments(t *testing.T) {
	type object = map[string]any
	run := func(kind string, duration any, repeat float64) object {
		return object{"preset": "mine", "experiment": object{"name": "mine", "repeat": repeat,
			"groups": []any{object{"networks": []any{kind}, "work": []any{object{"kind": "tcp", "duration": duration, "message_bytes": []any{64.0}}}}}}}
	}
	several := object{"experiment": object{"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, "e": 1.0, "f": 1.0}}
	for _, c := range []struct {
		name        string
		base, other object
		want        string // "" for no warning
	}{
		{"equal", run("veth", 1e9, 3), run("veth", 1e9, 3), ""},
		{"more blocks, other networks", run("veth", 1e9, 3), run("bridge", 1e9, 8), ""},
		{"durations", run("veth", 1e9, 3), run("veth", 1e8, 3), "the experiments differ: groups 1 work 1 duration: 1s → 100ms"},
		{"durations in words", run("veth", "1s", 3), run("veth", "100ms", 3), "the experiments differ: groups 1 work 1 duration: 1s → 100ms"},
		{"another group", object{"experiment": object{"groups": []any{object{}}}}, object{"experiment": object{"groups": []any{object{}, object{}}}}, "the experiments differ: groups: 1 → 2"},
		{"only presets recorded", object{"preset": "quick"}, object{"preset": "udp"}, "the experiments differ: name: quick → udp"},
		{"recorded by one run only", object{"preset": "mine"}, run("veth", 1e9, 3), ""},
		{"many", several, object{"experiment": object{}}, "the experiments differ: a: 1 → –; b: 1 → –; c: 1 → –; d: 1 → –; and 2 more"},
	} {
		if got := strings.Join(experimentWarnings(c.base, c.other), "\n"); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
