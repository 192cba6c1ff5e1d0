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

// tester is the part of testing.M that RunTests needs; production code imports
// no test packages.
type testRunner interface{ Run() int }

// skipper is the part of testing.TB that Need needs.
type skipper interface {
	Helper()
	Skip(args ...any)
}

// whyNotEnv carries the reason why there is no lab into the tests.
const whyNotEnv = "CLEAT_LAB_WHY_NOT"

// TestFlavour is the environment variable by which RunTests is asked for another
// flavour than Auto.
const TestFlavour = "CLEAT_TEST_LAB"

// RunTests runs a test binary's tests inside a user lab, by running the binary
// again in one, and returns the exit code for os.Exit:
//
//	func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }
//
// Where no lab can be had the tests run in place, and Need skips those that
// want one. With CLEAT_LAB=none they run in place and Need lets them: the
// machine as a whole is the lab. Fuzzing (go test -fuzz) runs in place.
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

// fuzzes reports whether the program was started by `go test -fuzz`. Its processes talk over
// descriptors that a lab would not have.
func isFuzzing() bool {
	return slices.ContainsFunc(os.Args, func(arg string) bool {
		return arg == "-test.fuzzworker" || strings.HasPrefix(arg, "-test.fuzz=")
	})
}

// AtOnce has at least n tests that say t.Parallel run at once, however few processors
// there are: for those that wait most of the time. TestMain calls it after flag.Parse.
func SetParallel(n int) {
	parallel := flag.Lookup("test.parallel")
	if now, err := strconv.Atoi(parallel.Value.String()); err != nil || now >= n {
		return
	}
	if err := parallel.Value.Set(strconv.Itoa(n)); err != nil {
		panic(err) // it is a number
	}
}

// Need skips the test, with the reason, where there is no lab around it.
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
