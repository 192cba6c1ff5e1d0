package lab

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// testRunner is the part of testing.M that RunTests needs. Production code imports no
// test packages.
type testRunner interface{ Run() int }

// skipper is the part of testing.TB that Need needs.
type skipper interface {
	Helper()
	Skip(args ...any)
}

// whyNotEnv passes the reason why there is no lab to the tests.
const whyNotEnv = "CLEAT_LAB_WHY_NOT"

// TestFlavour is the environment variable that sets the flavour for RunTests; the default
// is Auto.
const TestFlavour = "CLEAT_TEST_LAB"

// RunTests runs a test binary's tests inside a user lab, by running the binary again in
// one. It returns the exit code for os.Exit:
//
//	func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }
//
// If no lab can be had, the tests run in place, and Need skips those that need one. With
// CLEAT_LAB=none they run in place and Need skips none: the machine as a whole is the
// lab. Fuzzing (go test -fuzz) runs in place.
func RunTests(m testRunner) int {
	if isFuzzing() {
		return m.Run()
	}
	AnswerProbe()
	if f, inside := Inside(); inside {
		if f != None {
			if _, err := Settle(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
		}
		return m.Run()
	}
	code, err := Enter(context.Background(), Config{Flavour: Flavour(os.Getenv(TestFlavour))})
	if err != nil {
		os.Setenv(whyNotEnv, err.Error())
		return m.Run()
	}
	return code
}

// isFuzzing reports whether `go test -fuzz` started this program. Its processes
// communicate over descriptors that a lab would not inherit.
func isFuzzing() bool {
	return slices.ContainsFunc(os.Args, func(arg string) bool {
		return arg == "-test.fuzzworker" || strings.HasPrefix(arg, "-test.fuzz=")
	})
}

// SetParallel runs at least n parallel tests at once, whatever the number of processors,
// for tests that mostly wait. TestMain calls it after flag.Parse.
func SetParallel(n int) {
	parallel := flag.Lookup("test.parallel")
	if now, err := strconv.Atoi(parallel.Value.String()); err != nil || now >= n {
		return
	}
	if err := parallel.Value.Set(strconv.Itoa(n)); err != nil {
		panic(err) // the value is a number
	}
}

// Need skips the test, with the reason, if it does not run in a lab.
func Need(t skipper) {
	t.Helper()
	if _, inside := Inside(); inside {
		return
	}
	why := os.Getenv(whyNotEnv)
	if why == "" {
		why = "TestMain does not call lab.RunTests"
	}
	t.Skip("no lab: " + why)
}
