package usernettest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Case is one check of a data path.
type Case struct {
	Name    string
	Needs   []Ability
	Options Options // how to start the data path
	// Alone means that the case breaks its environment, or needs a new one.
	Alone      bool
	Conditions Conditions // if not zero, the case must be Alone
	Check      func(*T, *Env)
}

// Cases returns all cases, in the order in which they run.
func Cases() []Case {
	return slices.Concat(
		streamCases(), connectCases(), closeCases(), flowCases(), urgentCases(), manyCases(), churnCases(),
		udpCases(), icmpCases(), fragmentCases(), dnsCases(), clientCases(),
		stopCases(), mtuCases(), forwardCases(), policyCases(), hostileCases(), changeCases(), endCases(),
	)
}

// families makes a case for each version of IP, and appends the version to its name:
// "…/v4".
func families(newCase func(Family) Case) []Case {
	c4, c6 := newCase(V4), newCase(V6)
	c4.Name += "/v4"
	c6.Name += "/v6"
	c6.Needs = append(slices.Clone(c6.Needs), IPv6)
	return []Case{c4, c6}
}

// Direction is the side that opens a conversation.
type Direction string

// The directions.
const (
	Out Direction = "out" // from the container
	In  Direction = "in"  // to the container
)

// both makes a case for each direction and version of IP.
func both(newCase func(Direction, Family) Case) []Case {
	var all []Case
	for _, d := range []Direction{Out, In} {
		all = append(all, families(func(f Family) Case {
			c := newCase(d, f)
			c.Name += "/" + string(d)
			if d == In {
				c.Needs = append(slices.Clone(c.Needs), Inbound)
			}
			if d == In && f == V6 {
				c.Needs = append(c.Needs, Inbound6)
			}
			return c
		})...)
	}
	return all
}

// forFamilies makes a case for each version of IP.
func forFamilies(name string, check func(*T, *Env, Family), needs ...Ability) []Case {
	return families(func(f Family) Case {
		return Case{Name: name, Needs: needs, Check: func(x *T, s *Env) { check(x, s, f) }}
	})
}

// forBoth makes a case for each direction and version of IP.
func forBoth(name string, check func(*T, *Env, Direction, Family)) []Case {
	return both(func(d Direction, f Family) Case {
		return Case{Name: name, Check: func(x *T, s *Env) { check(x, s, d, f) }}
	})
}

// forPairs makes a case for each direction and version of IP, which checks a connection:
// in is the end in the container, out the one outside.
func forPairs(name string, check func(x *T, in, out *net.TCPConn)) []Case {
	return forBoth(name, func(x *T, s *Env, d Direction, f Family) {
		in, out := x.pair(s, d, f)
		check(x, in, out)
	})
}

// Run runs all cases whose names match on a path, each as a subtest.
func Run(t *testing.T, p Path, s Settings, match *regexp.Regexp) {
	runCases(t, p, s, match, func(t *testing.T, r Result) {
		switch r.Verdict {
		case Fail:
			t.Error(r.Reason)
		case Skip:
			t.Skip(r.Reason)
		}
	})
}

// Record is Run for a path whose failures are not ours: it only returns them.
func Record(t *testing.T, p Path, s Settings, match *regexp.Regexp) []Result {
	var all []Result
	runCases(t, p, s, match, func(t *testing.T, r Result) {
		all = append(all, r)
		if r.Verdict == Pass {
			return
		}
		t.Skipf("%s: %s", r.Verdict, r.Reason)
	})
	return all
}

func runCases(t *testing.T, p Path, s Settings, match *regexp.Regexp, report func(*testing.T, Result)) {
	st := &runner{path: p}
	defer func() {
		if err := st.teardown(); err != nil {
			t.Error(err)
		}
	}()
	for _, c := range Cases() {
		if match != nil && !match.MatchString(c.Name) {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			r := st.try(t.Context(), c, s)
			for _, n := range r.Notes {
				t.Log(n)
			}
			if r.Log != "" {
				t.Logf("the helper's log: %s", r.Log)
			}
			report(t, r)
		})
	}
}

// Try runs one case on a path.
func Try(ctx context.Context, p Path, c Case, s Settings) Result {
	st := &runner{path: p}
	defer st.teardown()
	return st.try(ctx, c, s)
}

// Table formats results for people: verdict, case, reason.
func Table(results []Result) string {
	var b strings.Builder
	for _, r := range results {
		remarks := r.Notes
		if r.Reason != "" {
			remarks = append([]string{r.Reason}, remarks...)
		}
		line := fmt.Sprintf("%s  %-44s %s", r.Verdict, r.Case, strings.Join(remarks, "; "))
		b.WriteString(strings.TrimRight(strings.ReplaceAll(line, "\n", " "), " ") + "\n")
	}
	return b.String()
}

// Env is a topology with a data path running on it.
type Env struct {
	*Topology
	*Instance
	Options  Options
	dataPath Path
	nextPort int // counts the forwarded ports handed out
}

// runner keeps an environment for the cases that can share it.
type runner struct {
	path Path
	env  *Env
}

func (st *runner) try(ctx context.Context, c Case, s Settings) Result {
	if why := st.path.missing(c.Needs); why != "" {
		return Result{Case: c.Name, Verdict: Skip, Reason: why}
	}
	if err := st.prepare(ctx, c, s); err != nil {
		return Result{Case: c.Name, Verdict: Fail, Reason: err.Error()}
	}
	r := try(ctx, c.Name, s, func(x *T) { c.Check(x, st.env) })
	if !c.Alone && r.Verdict != Fail && !st.env.alive() {
		r.Verdict, r.Reason = Fail, "the helper has ended"
	}
	if r.Verdict == Fail {
		r.Log = st.env.logTail()
	}
	if c.Alone || r.Verdict == Fail {
		st.teardown()
	}
	return r
}

// prepare makes the environment that c needs, unless it exists.
func (st *runner) prepare(ctx context.Context, c Case, s Settings) error {
	want := c.Options
	if want.Forwards == nil && st.path.missing([]Ability{Inbound}) == "" {
		want.Forwards = forwarded()
	}
	if st.env != nil && !c.Alone && reflect.DeepEqual(st.env.Options, want) {
		return nil
	}
	if err := st.teardown(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout())
	defer cancel()
	site, err := NewTopology(c.Conditions)
	if err != nil {
		return fmt.Errorf("build topology: %w", err)
	}
	i, err := st.path.Start(ctx, site, want)
	if err != nil {
		return errors.Join(fmt.Errorf("start %s: %w", st.path.Name, err), site.Close())
	}
	st.env = &Env{Topology: site, Instance: i, Options: want, dataPath: st.path}
	return nil
}

// teardown stops the data path and closes the topology.
func (st *runner) teardown() error {
	if st.env == nil {
		return nil
	}
	s := st.env
	st.env = nil
	s.stop(unix.SIGTERM)
	return s.Topology.Close()
}

// stopTimeout is how long a helper may take to end after SIGTERM before it is killed.
// Another case checks how it ends.
const stopTimeout = time.Second

// stop stops the helper and waits for it. A second call does nothing.
func (s *Env) stop(sig unix.Signal) {
	if s.Proc == nil {
		return
	}
	proc := s.Proc
	s.Proc = nil
	unix.Kill(proc.PID(), sig)
	late := time.AfterFunc(stopTimeout, proc.Kill)
	proc.Wait()
	late.Stop()
	if s.Stopped != nil {
		s.Stopped()
	}
}

// alive reports whether the helper still runs.
func (s *Env) alive() bool {
	return s.Proc == nil || !slices.Contains([]byte{0, 'Z', 'X'}, procState(s.Proc.PID()))
}
