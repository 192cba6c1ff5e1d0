package vm

import (
	"regexp"
	"strings"
)

// Verdict is how a test ended.
type Verdict string

// The verdicts. Died is that of a test that began and never ended.
const (
	Pass Verdict = "pass"
	Fail Verdict = "FAIL"
	Skip Verdict = "skip"
	Died Verdict = "DIED"
)

// Outcome is one test in the output of a Go test binary that was run with
// -test.v=test2json: unlike plain -test.v it prints the verdict of a subtest at
// once, not when the outermost test ends, so that a binary that dies has told
// what it had found.
type Outcome struct {
	Test    string // with its parents, slash-separated, as Go prints it
	Verdict Verdict
	Log     []string // what the test logged, without file and line
}

var (
	testMarker  = regexp.MustCompile(`^=== (?:RUN|NAME|CONT) +(\S+)$`)
	testVerdict = regexp.MustCompile(`^ *--- (PASS|FAIL|SKIP): (\S+) \(`)
	testLog     = regexp.MustCompile(`^    (?:\s*\S+\.go:\d+: )?(.*)$`)

	verdicts = map[string]Verdict{"PASS": Pass, "FAIL": Fail, "SKIP": Skip}
)

// Readable takes the marks out of the output of a test binary that tell its own
// lines from those of the code under test (^V, wherever in a line), so that each
// of its lines begins a line.
func Readable(output []byte) string {
	s := strings.ReplaceAll(string(output), "\r\n", "\n")
	s = strings.ReplaceAll(s, "\n\x16", "\n")
	return strings.ReplaceAll(strings.TrimPrefix(s, "\x16"), "\x16", "\n")
}

// Outcomes reads what a Go test binary printed (made Readable), in the order in
// which the tests began. Lines that no test logged are passed over.
func Outcomes(output string) []Outcome {
	var out []Outcome
	index := map[string]int{}
	get := func(name string) *Outcome {
		i, ok := index[name]
		if !ok {
			i = len(out)
			index[name] = i
			out = append(out, Outcome{Test: name, Verdict: Died})
		}
		return &out[i]
	}
	current := ""
	for line := range strings.Lines(output) {
		line = strings.TrimRight(line, "\n")
		if m := testMarker.FindStringSubmatch(line); m != nil {
			current = m[1]
			get(current)
		} else if m := testVerdict.FindStringSubmatch(line); m != nil {
			get(m[2]).Verdict = verdicts[m[1]]
		} else if m := testLog.FindStringSubmatch(line); m != nil && current != "" {
			o := get(current)
			o.Log = append(o.Log, m[1])
		}
	}
	return out
}

// Leaves are the outcomes of tests that have no subtests.
func Leaves(all []Outcome) []Outcome {
	parent := map[string]bool{}
	for _, o := range all {
		for i, r := range o.Test {
			if r == '/' {
				parent[o.Test[:i]] = true
			}
		}
	}
	var out []Outcome
	for _, o := range all {
		if !parent[o.Test] {
			out = append(out, o)
		}
	}
	return out
}
