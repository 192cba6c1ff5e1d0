package main

import (
	"strings"
	"testing"
)

// events writes `go test -json` lines from a shorter form: action, package,
// test, output.
func events(lines ...[4]string) string {
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(`{"Action":"` + l[0] + `","Package":"` + l[1] + `","Test":"` + l[2] + `","Output":"` + l[3] + `"}` + "\n")
	}
	return b.String()
}

func TestSummary(t *testing.T) {
	pass := events([4]string{"run", "cleat/a", "TestA"}, [4]string{"pass", "cleat/a", "TestA"})
	for _, tt := range []struct {
		name, input string
		ok          bool
		last        string
		says        []string
	}{
		{"passed", pass + events([4]string{"pass", "cleat/a"}), true, "1 passed, 0 failed, 0 skipped", []string{"ok   cleat/a"}},
		{"nothing", "", false, "0 passed, 0 failed, 0 skipped", []string{"no test ran"}},
		{"packages without tests", events([4]string{"skip", "cleat/a"}), false, "0 passed, 0 failed, 0 skipped", []string{"no test ran"}},
		{"failed", pass + events(
			[4]string{"run", "cleat/a", "TestB"}, [4]string{"output", "cleat/a", "TestB", "    b_test.go:3: wrong\\n"},
			[4]string{"fail", "cleat/a", "TestB"}, [4]string{"fail", "cleat/a"}),
			false, "1 passed, 1 failed, 0 skipped", []string{"FAIL cleat/a", "--- TestB", "b_test.go:3: wrong"}},
		{"subtests count, their parent does not", events(
			[4]string{"run", "cleat/a", "TestA"},
			[4]string{"run", "cleat/a", "TestA/x"}, [4]string{"pass", "cleat/a", "TestA/x"},
			[4]string{"run", "cleat/a", "TestA/y"}, [4]string{"fail", "cleat/a", "TestA/y"},
			[4]string{"fail", "cleat/a", "TestA"}, [4]string{"fail", "cleat/a"}),
			false, "1 passed, 1 failed, 0 skipped", []string{"--- TestA/y"}},
		{"a parent fails by itself", events(
			[4]string{"run", "cleat/a", "TestA"},
			[4]string{"run", "cleat/a", "TestA/x"}, [4]string{"pass", "cleat/a", "TestA/x"},
			[4]string{"fail", "cleat/a", "TestA"}, [4]string{"fail", "cleat/a"}),
			false, "1 passed, 1 failed, 0 skipped", []string{"--- TestA\n"}},
		{"skipped with reasons", pass + events(
			[4]string{"run", "cleat/a", "TestB"}, [4]string{"output", "cleat/a", "TestB", "=== RUN   TestB\\n"},
			[4]string{"output", "cleat/a", "TestB", "    b_test.go:7: no lab: sysctl forbids\\n"},
			[4]string{"output", "cleat/a", "TestB", "--- SKIP: TestB (0.00s)\\n"},
			[4]string{"skip", "cleat/a", "TestB"}, [4]string{"pass", "cleat/a"}),
			true, "1 passed, 0 failed, 1 skipped", []string{"skipped, by reason:", "   1  no lab: sysctl forbids", "a.TestB"}},
		{"everything skipped is no success", events(
			[4]string{"run", "cleat/a", "TestB"}, [4]string{"skip", "cleat/a", "TestB"}, [4]string{"pass", "cleat/a"}),
			false, "0 passed, 0 failed, 1 skipped", []string{"no reason given"}},
		{"a package that does not build",
			pass + events([4]string{"pass", "cleat/a"}) +
				`{"ImportPath":"cleat/b [cleat/b.test]","Action":"build-output","Output":"b.go:1: undefined: x\n"}` + "\n" +
				`{"Action":"fail","Package":"cleat/b","FailedBuild":"cleat/b [cleat/b.test]"}` + "\n",
			false, "1 passed, 1 failed, 0 skipped", []string{"FAIL cleat/b", "b.go:1: undefined: x"}},
		{"a package that ends outside a test", events(
			[4]string{"output", "cleat/a", "", "no such flag\\n"}, [4]string{"fail", "cleat/a"}),
			false, "0 passed, 1 failed, 0 skipped", []string{"no such flag"}},
		{"a panic ends a test", pass + events(
			[4]string{"run", "cleat/a", "TestB"}, [4]string{"run", "cleat/a", "TestB/x"},
			[4]string{"output", "cleat/a", "TestB/x", "panic: oh\\n"}, [4]string{"fail", "cleat/a"}),
			false, "1 passed, 1 failed, 0 skipped", []string{"--- TestB/x", "panic: oh"}},
		{"the events break off", pass, false, "1 passed, 1 failed, 0 skipped", []string{"FAIL cleat/a"}},
		{"a line that is no event", "go: cannot find main module\n", false, "0 passed, 0 failed, 0 skipped", []string{"go: cannot find main module"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var w strings.Builder
			s := newSummary(&w)
			if err := read(strings.NewReader(tt.input), s); err != nil {
				t.Fatal(err)
			}
			if ok := s.finish(); ok != tt.ok {
				t.Errorf("success %v, want %v", ok, tt.ok)
			}
			lines := strings.Split(strings.TrimSuffix(w.String(), "\n"), "\n")
			if last := lines[len(lines)-1]; last != tt.last {
				t.Errorf("last line %q, want %q", last, tt.last)
			}
			for _, text := range tt.says {
				if !strings.Contains(w.String(), text) {
					t.Errorf("does not say %q:\n%s", text, w.String())
				}
			}
		})
	}
}
