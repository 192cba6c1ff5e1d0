package vm

import (
	"regexp"
	"strings"
)

// Verdict is the result of a test.
type Verdict string

// The verdicts. Died is the verdict of a test that began and never ended.
const (
	Pass Verdict = "pass"
	Fail Verdict = "FAIL"
	Skip Verdict = "skip"
	Died Verdict = "DIED"
)

// Outcome is the result of one test in the output of a Go test binary that ran with
// -test.v=test2json. Unlike plain -test.v, that prints the verdict of a subtest at once,
// not when the outermost test ends, so a binary that dies has printed the results so far.
type Outcome struct {
	Test    string // with its parents, slash-separated, as Go prints it
	Verdict Verdict
	Log     []string // without file and line
}

var (
	testMarker  = regexp.MustCompile(`^=== (?:RUN|NAME|CONT) +(\S+)$`)
	testVerdict = regexp.MustCompile(`^ *--- (PASS|FAIL|SKIP): (\S+) \(`)
	testLog     = regexp.MustCompile(`^    (?:\s*\S+\.go:\d+: )?(.*)$`)

	verdicts = map[string]Verdict{"PASS": Pass, "FAIL": Fail, "SKIP": Skip}
)

// Readable removes the marks (^V, anywhere in a line) by which a test binary
// distinguishes its own lines from those of the tested code. Each of its lines then
// begins a line.
func Readable(output []byte) string {
	s := strings.ReplaceAll(string(output), "\r\n", "\n")
	s = strings.ReplaceAll(s, "\n\x16", "\n")
	return strings.ReplaceAll(strings.TrimPrefix(s, "\x16"), "\x16", "\n")
}

// Outcomes parses the Readable output of a Go test binary, in the order in which the
// tests began. It ignores lines that no test logged.
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

// Leaves returns the outcomes of tests without subtests.
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
