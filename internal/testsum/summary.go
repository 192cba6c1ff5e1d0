package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// summary gathers the events of a run.
type summary struct {
	w                       io.Writer
	passed, failed, skipped int
	packages                map[string]*testedPackage
	builds                  map[string]*strings.Builder // what the compiler said, by import path
	reasons                 map[string][]string         // names of skipped tests by reason
	failures                []failure
	again                   func(failure) bool // tries a test again, by itself; nil: nothing does
}

// failure is a test that has failed and ended; what a panic or the time limit
// ended, and what does not build, has no name.
type failure struct{ pkg, test string }

// testedPackage is what is known of a package until it ends.
type testedPackage struct {
	tests  map[string]*test
	output strings.Builder // outside any test
	counts [3]int          // passed, failed, skipped
	why    []string        // the failed tests' output
	ended  []string        // the names of those that failed by themselves
}

// test is one test until its package ends.
type test struct {
	output strings.Builder
	parent bool // has subtests, which are counted instead
	ended  bool
}

func newSummary(w io.Writer) *summary {
	return &summary{
		w: w, packages: map[string]*testedPackage{},
		builds: map[string]*strings.Builder{}, reasons: map[string][]string{},
	}
}

// stray shows a line that is no event.
func (s *summary) stray(line string) { fmt.Fprint(s.w, line) }

func (s *summary) add(e event) {
	switch {
	case e.Action == "build-output":
		if s.builds[e.ImportPath] == nil {
			s.builds[e.ImportPath] = &strings.Builder{}
		}
		s.builds[e.ImportPath].WriteString(e.Output)
	case e.Package == "":
	case e.Test == "":
		s.addPackage(e)
	default:
		s.addTest(e)
	}
}

func (s *summary) of(name string) *testedPackage {
	if s.packages[name] == nil {
		s.packages[name] = &testedPackage{tests: map[string]*test{}}
	}
	return s.packages[name]
}

func (s *summary) addTest(e event) {
	p := s.of(e.Package)
	t := p.tests[e.Test]
	if t == nil {
		t = &test{}
		p.tests[e.Test] = t
		if above := p.above(e.Test); above != nil {
			above.parent = true
		}
	}
	switch e.Action {
	case "output":
		t.output.WriteString(e.Output)
	case "pass", "fail", "skip":
		t.ended = true
		s.ended(p, e, t)
	}
}

// above is the test that has the named one as a subtest, whose own name may
// have slashes; nil: none has.
func (p *testedPackage) above(name string) *test {
	for {
		i := strings.LastIndexByte(name, '/')
		if i < 0 {
			return nil
		}
		if name = name[:i]; p.tests[name] != nil {
			return p.tests[name]
		}
	}
}

// ended counts a test that has ended. A test with subtests counts only when it
// failed and none of them did.
func (s *summary) ended(p *testedPackage, e event, t *test) {
	switch e.Action {
	case "pass":
		if !t.parent {
			p.counts[0]++
		}
	case "fail":
		if !t.parent || !p.failedBelow(e.Test) {
			p.fail(e.Test, t.output.String())
			p.ended = append(p.ended, e.Test)
		}
	case "skip":
		p.counts[2]++
		why := reason(t.output.String())
		s.reasons[why] = append(s.reasons[why], strings.TrimPrefix(e.Package, "cleat/")+"."+e.Test)
	}
}

func (p *testedPackage) fail(name, output string) {
	p.counts[1]++
	p.why = append(p.why, fmt.Sprintf("--- %s\n%s", name, output))
}

// failedBelow tells whether a subtest of the test has failed.
func (p *testedPackage) failedBelow(name string) bool {
	return slices.ContainsFunc(p.why, func(w string) bool { return strings.HasPrefix(w, "--- "+name+"/") })
}

func (s *summary) addPackage(e event) {
	p := s.of(e.Package)
	switch e.Action {
	case "output":
		p.output.WriteString(e.Output)
	case "pass", "fail", "skip":
		s.endPackage(p, e)
	}
}

// endPackage prints and counts a package that has ended.
func (s *summary) endPackage(p *testedPackage, e event) {
	if e.Action == "fail" {
		p.unfinished()
		if p.counts[1] == 0 {
			p.fail(cmp.Or(e.FailedBuild, e.Package), s.buildOutput(e.FailedBuild)+p.output.String())
		}
	}
	s.passed += p.counts[0]
	s.failed += p.counts[1]
	s.skipped += p.counts[2]
	if len(p.ended) == p.counts[1] {
		for _, name := range p.ended {
			s.failures = append(s.failures, failure{e.Package, name})
		}
	}
	delete(s.packages, e.Package)
	if p.counts == [3]int{} {
		return // without tests
	}
	verdict := "ok  "
	if p.counts[1] > 0 {
		verdict = "FAIL"
	}
	fmt.Fprintf(s.w, "%s %-32s %4d passed %3d failed %3d skipped %7.1f s\n",
		verdict, e.Package, p.counts[0], p.counts[1], p.counts[2], e.Elapsed)
	for _, w := range p.why {
		fmt.Fprintln(s.w, strings.TrimRight(w, "\n"))
	}
}

// unfinished counts as failed the tests that a panic or the time limit ended:
// of those, the innermost.
func (p *testedPackage) unfinished() {
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(p.tests))) {
		if t := p.tests[name]; !t.ended && !p.failedBelow(name) {
			p.fail(name, t.output.String()+p.output.String())
		}
	}
}

func (s *summary) buildOutput(importPath string) string {
	if b := s.builds[importPath]; b != nil {
		return b.String()
	}
	return ""
}

// count counts the packages as failed whose events broke off. It is the number
// of failures.
func (s *summary) count() int {
	for _, name := range slices.Sorted(maps.Keys(s.packages)) {
		s.endPackage(s.packages[name], event{Action: "fail", Package: name})
	}
	return s.failed
}

// finish prints why tests were skipped and the counts, and tells whether the
// run was a success.
func (s *summary) finish() bool {
	s.count()
	if len(s.reasons) > 0 {
		fmt.Fprintln(s.w, "\nskipped, by reason:")
	}
	for _, why := range slices.Sorted(maps.Keys(s.reasons)) {
		names := s.reasons[why]
		fmt.Fprintf(s.w, "%4d  %s\n", len(names), why)
		for i, n := range names {
			if i == shownNames {
				fmt.Fprintf(s.w, "        … and %d more\n", len(names)-i)
				break
			}
			fmt.Fprintf(s.w, "        %s\n", n)
		}
	}
	s.tryAgain()
	ok := s.failed == 0 && s.passed > 0
	if s.passed+s.failed == 0 {
		fmt.Fprintln(s.w, "no test ran")
	}
	fmt.Fprintf(s.w, "\n%d passed, %d failed, %d skipped\n", s.passed, s.failed, s.skipped)
	return ok
}

// mostAgain is how many tests that failed are tried again. Where more fail it
// is no accident.
const mostAgain = 3

// tryAgain gives what has failed a second try, where that is all that has.
func (s *summary) tryAgain() {
	if s.again == nil || len(s.failures) != s.failed || s.failed > mostAgain {
		return
	}
	for _, f := range s.failures {
		if !s.again(f) {
			continue
		}
		s.failed--
		s.passed++
		fmt.Fprintf(s.w, "\nunsteady: %s.%s failed, see above, and passed when it was tried again by itself\n", f.pkg, f.test)
	}
}

// shownNames is how many tests are named under one reason: enough to see what
// they are about.
const shownNames = 5

var (
	frame    = regexp.MustCompile(`^\s*(===|---) .*`)
	location = regexp.MustCompile(`^\s*[\w.]+\.go:\d+: `)
)

// reason is what a skipped test said, without the frame that go test puts
// around it.
func reason(output string) string {
	var said []string
	for line := range strings.Lines(output) {
		line = strings.TrimRight(line, "\n")
		if frame.MatchString(line) {
			continue
		}
		if line = strings.TrimSpace(location.ReplaceAllString(line, "")); line != "" {
			said = append(said, line)
		}
	}
	if len(said) == 0 {
		return "no reason given"
	}
	return said[len(said)-1]
}
