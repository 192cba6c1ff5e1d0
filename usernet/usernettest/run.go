package usernettest

import (
	"context"
	"errors"
	"fmt"
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
	Options Options // what the data path is started with
	// Alone cases break the scene, or need an untouched one.
	Alone bool
	Site  Conditions // unless zero, the case must be Alone
	Check func(*X, *Scene)
}

// Cases are all cases, in the order in which they are tried.
func Cases() []Case {
	return slices.Concat(
		streamCases(), connectCases(), closeCases(), flowCases(), urgentCases(), manyCases(), churnCases(),
		udpCases(), icmpCases(), fragmentCases(), dnsCases(), clientCases(),
		stopCases(), mtuCases(), forwardCases(), policyCases(), hostileCases(), changeCases(), endCases(),
	)
}

// families makes a case for each version of IP, which ends its name: "…/v4".
func families(make func(Family) Case) []Case {
	c4, c6 := make(V4), make(V6)
	c4.Name += "/v4"
	c6.Name += "/v6"
	c6.Needs = append(slices.Clone(c6.Needs), IPv6)
	return []Case{c4, c6}
}

// Direction is the side from which a conversation begins.
type Direction string

// The directions.
const (
	Out Direction = "out" // from the container
	In  Direction = "in"  // toward it
)

// both makes a case for each direction and version of IP.
func both(make func(Direction, Family) Case) []Case {
	var all []Case
	for _, d := range []Direction{Out, In} {
		all = append(all, families(func(f Family) Case {
			c := make(d, f)
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

// Run tries a path with all cases whose names match, each as a subtest.
func Run(t *testing.T, p Path, s Settings, match *regexp.Regexp) {
	play(t, p, s, match, func(t *testing.T, r Result) {
		switch r.Verdict {
		case Fail:
			t.Error(r.Why)
		case Skip:
			t.Skip(r.Why)
		}
	})
}

// Record is Run for a path whose failures are not ours: they are only returned.
func Record(t *testing.T, p Path, s Settings, match *regexp.Regexp) []Result {
	var all []Result
	play(t, p, s, match, func(t *testing.T, r Result) {
		all = append(all, r)
		if r.Verdict == Pass {
			return
		}
		t.Skipf("%s: %s", r.Verdict, r.Why)
	})
	return all
}

func play(t *testing.T, p Path, s Settings, match *regexp.Regexp, report func(*testing.T, Result)) {
	st := &stage{path: p}
	defer func() {
		if err := st.clear(); err != nil {
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
			if r.Said != "" {
				t.Logf("the helper said: %s", r.Said)
			}
			report(t, r)
		})
	}
}

// Try tries a path with one case.
func Try(ctx context.Context, p Path, c Case, s Settings) Result {
	st := &stage{path: p}
	defer st.clear()
	return st.try(ctx, c, s)
}

// Table is the results as lines for people: verdict, case, reason.
func Table(results []Result) string {
	var b strings.Builder
	for _, r := range results {
		remarks := r.Notes
		if r.Why != "" {
			remarks = append([]string{r.Why}, remarks...)
		}
		line := fmt.Sprintf("%s  %-44s %s", r.Verdict, r.Case, strings.Join(remarks, "; "))
		b.WriteString(strings.TrimRight(strings.ReplaceAll(line, "\n", " "), " ") + "\n")
	}
	return b.String()
}

// Scene is a site with a data path running on it.
type Scene struct {
	*Site
	*Instance
	Options Options
	path    Path
	next    int // forwarded ports handed out
}

// stage keeps a scene for the cases that can share one.
type stage struct {
	path  Path
	scene *Scene
}

func (st *stage) try(ctx context.Context, c Case, s Settings) Result {
	if why := st.path.lacks(c.Needs); why != "" {
		return Result{Case: c.Name, Verdict: Skip, Why: why}
	}
	if err := st.set(ctx, c, s); err != nil {
		return Result{Case: c.Name, Verdict: Fail, Why: err.Error()}
	}
	r := try(ctx, c.Name, s, func(x *X) { c.Check(x, st.scene) })
	if !c.Alone && r.Verdict != Fail && !st.scene.alive() {
		r.Verdict, r.Why = Fail, "the helper has ended"
	}
	if r.Verdict == Fail {
		r.Said = st.scene.said()
	}
	if c.Alone || r.Verdict == Fail {
		st.clear()
	}
	return r
}

// set makes the scene that c wants, unless it is there.
func (st *stage) set(ctx context.Context, c Case, s Settings) error {
	want := c.Options
	if want.Forwards == nil && st.path.lacks([]Ability{Inbound}) == "" {
		want.Forwards = forwarded()
	}
	if st.scene != nil && !c.Alone && reflect.DeepEqual(st.scene.Options, want) {
		return nil
	}
	if err := st.clear(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.patience())
	defer cancel()
	site, err := NewSite(c.Site)
	if err != nil {
		return fmt.Errorf("build a site: %w", err)
	}
	i, err := st.path.Start(ctx, site, want)
	if err != nil {
		return errors.Join(fmt.Errorf("start %s: %w", st.path.Name, err), site.Close())
	}
	st.scene = &Scene{Site: site, Instance: i, Options: want, path: st.path}
	return nil
}

// clear ends what runs and lets the site go.
func (st *stage) clear() error {
	if st.scene == nil {
		return nil
	}
	s := st.scene
	st.scene = nil
	s.end(unix.SIGTERM)
	return s.Site.Close()
}

// graceful is how long a helper may take to end after SIGTERM before it is
// killed; a case of its own looks at how it ends.
const graceful = time.Second

// end ends the helper and waits for it. Ending it twice is harmless.
func (s *Scene) end(sig unix.Signal) {
	if s.Proc == nil {
		return
	}
	proc := s.Proc
	s.Proc = nil
	unix.Kill(proc.PID(), sig)
	late := time.AfterFunc(graceful, proc.Kill)
	proc.Wait()
	late.Stop()
	if s.Stopped != nil {
		s.Stopped()
	}
}

// alive tells whether the helper still runs.
func (s *Scene) alive() bool {
	return s.Proc == nil || !slices.Contains([]byte{0, 'Z', 'X'}, state(s.Proc.PID()))
}
