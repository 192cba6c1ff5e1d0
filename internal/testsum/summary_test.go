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
		{"a subtest has a slash in its name", events(
			[4]string{"run", "cleat/a", "TestA"},
			[4]string{"run", "cleat/a", "TestA/x/y"}, [4]string{"fail", "cleat/a", "TestA/x/y"},
			[4]string{"fail", "cleat/a", "TestA"}, [4]string{"fail", "cleat/a"}),
			false, "0 passed, 1 failed, 0 skipped", []string{"--- TestA/x/y"}},
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

// TestTryAgain: what failed and passes alone is counted as passed and named; a
// panic, and more than a few, are what they are.
func TestTryAgain(t *testing.T) {
	fails := func(names ...string) string {
		var lines [][4]string
		for _, n := range names {
			lines = append(lines, [4]string{"run", "cleat/a", n}, [4]string{"fail", "cleat/a", n})
		}
		return events(append(lines, [4]string{"fail", "cleat/a"})...)
	}
	for _, tt := range []struct {
		name, input string
		pass        string // passes when it is tried again
		tried       string
		ok          bool
		last        string
	}{
		{"one passes", fails("TestA"), "TestA", "TestA", true, "1 passed, 0 failed, 0 skipped"},
		{"it fails again", fails("TestA"), "", "TestA", false, "0 passed, 1 failed, 0 skipped"},
		{"one of two passes", fails("TestA", "TestB"), "TestB", "TestA TestB", false, "1 passed, 1 failed, 0 skipped"},
		{"too many", fails("TestA", "TestB", "TestC", "TestD"), "TestA", "", false, "0 passed, 4 failed, 0 skipped"},
		{"a panic after a failure", events(
			[4]string{"run", "cleat/a", "TestA"}, [4]string{"fail", "cleat/a", "TestA"},
			[4]string{"run", "cleat/a", "TestB"}, [4]string{"fail", "cleat/a"}),
			"TestA", "", false, "0 passed, 2 failed, 0 skipped"},
		{"nothing failed", events([4]string{"run", "cleat/a", "TestA"}, [4]string{"pass", "cleat/a", "TestA"}, [4]string{"pass", "cleat/a"}),
			"", "", true, "1 passed, 0 failed, 0 skipped"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var w strings.Builder
			var tried []string
			s := newSummary(&w)
			s.again = func(f failure) bool {
				tried = append(tried, f.test)
				return f.pkg == "cleat/a" && f.test == tt.pass
			}
			if err := read(strings.NewReader(tt.input), s); err != nil {
				t.Fatal(err)
			}
			if ok := s.finish(); ok != tt.ok {
				t.Errorf("success %v, want %v", ok, tt.ok)
			}
			if got := strings.Join(tried, " "); got != tt.tried {
				t.Errorf("tried again: %q, want %q", got, tt.tried)
			}
			if !strings.HasSuffix(w.String(), "\n"+tt.last+"\n") {
				t.Errorf("want %q last:\n%s", tt.last, w.String())
			}
			if named := strings.Contains(w.String(), "unsteady: cleat/a."+tt.pass); named != (tt.pass != "" && tt.tried != "") {
				t.Errorf("named as unsteady: %v:\n%s", named, w.String())
			}
		})
	}
}

// TestPassesAgain runs a command in place of go test.
func TestPassesAgain(t *testing.T) {
	f := failure{"cleat/a", "TestA/x_y/z.1"}
	says := func(action, test string) []string {
		return []string{"sh", "-c", `test "$1 $2 $3" = '-run ^TestA$/^x_y$/^z\.1$ cleat/a' || exit 2
			echo '{"Action":"` + action + `","Package":"cleat/a","Test":"` + test + `"}'`, "sh"}
	}
	for _, tt := range []struct {
		name    string
		command []string
		want    bool
	}{
		{"passed", says("pass", f.test), true},
		{"skipped", says("skip", f.test), false},
		{"another", says("pass", "TestA"), false},
		{"nothing can be run", []string{"/nowhere/go"}, false},
		{"passed, but the package failed", []string{"sh", "-c", `echo '{"Action":"pass","Package":"cleat/a","Test":"` + f.test + `"}'; exit 1`}, false},
	} {
		if got := passesAgain(tt.command, f); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestRun: a command that ends badly is a failure whatever it has said.
func TestRun(t *testing.T) {
	pass := `{"Action":"pass","Package":"cleat/a","Test":"TestA"}`
	fail := `{"Action":"fail","Package":"cleat/a","Test":"TestA"}`
	done := `{"Action":"pass","Package":"cleat/a"}`
	for _, tt := range []struct {
		name, script string
		ok           bool
		err          string
	}{
		{"passed", "echo '" + pass + "'; echo '" + done + "'", true, ""},
		{"passed, but the command failed", "echo '" + pass + "'; echo '" + done + "'; exit 3", false, "exit status 3"},
		{"failed", "echo '" + fail + "'; exit 1", false, ""},
		{"failed and passed again", `test "$1" = -run && { echo '` + pass + "'; exit 0; }; echo '" + fail + "'; exit 1", true, ""},
		{"killed", "echo '" + pass + "'; echo '" + done + "'; kill -9 $$", false, "killed"},
	} {
		var w strings.Builder
		ok, err := run([]string{"sh", "-c", tt.script, "sh", "./..."}, &w)
		if ok != tt.ok || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %v, %v\n%s", tt.name, ok, err, w.String())
		}
	}
}
