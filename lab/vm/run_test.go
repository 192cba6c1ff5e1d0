package vm_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/lab/vm"
)

// Guests run at once, as many as there are processors (-parallel). Each uses one
// processor and at most 1 GiB. No test in a guest depends on its speed.

// trial is a test binary to run in guests.
type trial struct {
	then    *trial    // runs in the same guest afterwards: its program and args
	program string    // built by buildTest
	args    []string  // selects tests
	files   []vm.File // besides program
	env     []string
	modules []string // besides linkModules
	load    []string // besides loadedModules
	cards   int      // network cards
}

// eachKernel runs the trial in a guest with each kernel, and calls check with the
// outcomes.
func (tr trial) eachKernel(t *testing.T, cache string, suites []string, check func(*testing.T, vm.Kernel, []vm.Outcome)) {
	t.Helper()
	for _, suite := range suites {
		t.Run(suite, func(t *testing.T) {
			t.Parallel()
			k, userland := fetch(t, cache, suite)
			check(t, k, tr.boot(t, k, userland))
		})
	}
}

// boot runs the trial in one guest and returns the outcomes. It reports tests that
// failed, and the guest's output if a test died.
func (tr trial) boot(t *testing.T, k vm.Kernel, userland string) []vm.Outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), guestLimit(t))
	defer cancel()
	files, command := tr.files, []string{"/bin/sh", "-c", `status=0; for run; do sh -c "$run" || status=$?; done; exit $status`, "-"}
	for i, one := 0, &tr; one != nil; i, one = i+1, one.then {
		path := fmt.Sprintf("/root/test%d", i)
		files = append(files, vm.File{Path: path, Mode: 0o755, Source: one.program})
		command = append(command, strings.Join(quoted(slices.Concat([]string{path, "-test.v=test2json", "-test.timeout", "1h"}, one.args)), " "))
	}
	res, err := vm.Boot(ctx, vm.Config{
		Kernel:   k,
		Userland: userland,
		Files:    files,
		Modules:  slices.Concat(linkModules, tr.modules),
		Load:     slices.Concat(loadedModules, tr.load),
		// A guest's clock may run fast, so the context ends it.
		Command: command,
		Env:     slices.Concat([]string{"CLEAT_LAB=none"}, tr.env), // the guest as a whole is the lab
		Cards:   tr.cards,
	})
	text := vm.Readable(res.Output)
	if err != nil {
		t.Fatalf("%v\nits output:\n%s", err, text)
	}
	all := vm.Outcomes(text)
	failed, died := false, len(all) == 0
	for _, o := range all {
		switch o.Verdict {
		case vm.Fail, vm.Died:
			failed, died = true, died || o.Verdict == vm.Died
			t.Errorf("%s: %s: %s", o.Test, o.Verdict, strings.Join(o.Log, "; "))
		}
	}
	if res.Status != 0 && !failed || died {
		t.Errorf("the guest ended with status %d:\n%s", res.Status, text)
	}
	t.Logf("kernel %s: %d tests in %.1f s, boot included", k.Release, len(vm.Leaves(all)), res.Elapsed.Seconds())
	return all
}

// quoted returns words for the shell.
func quoted(words []string) (all []string) {
	for _, w := range words {
		all = append(all, "'"+strings.ReplaceAll(w, "'", `'\''`)+"'")
	}
	return all
}

// guestLimit returns how long a guest may take.
func guestLimit(t *testing.T) time.Duration {
	deadline, ok := t.Deadline()
	if !ok {
		return guestTimeout
	}
	return min(guestTimeout, time.Until(deadline)-reportTime)
}

// atLeast reports an error if fewer tests have passed: a guest in which most tests are
// skipped has tested nothing. It logs the skipped tests.
func atLeast(t *testing.T, all []vm.Outcome, least int) {
	t.Helper()
	passed := 0
	for _, o := range all {
		switch o.Verdict {
		case vm.Skip:
			t.Logf("%s skipped: %s", o.Test, strings.Join(o.Log, "; "))
		case vm.Pass:
			passed++
		}
	}
	if passed < least {
		t.Errorf("%d tests passed, want at least %d", passed, least)
	}
}
