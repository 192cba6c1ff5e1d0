package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"syscall"
	"time"

	"cleat/bench/attacher"
	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/container"
	"cleat/bench/experiment"
	"cleat/bench/schedule"
	"cleat/bench/spanned"
	"cleat/bench/wiring"
	"cleat/link"
)

// Config says what to run and where to keep the results.
type Config struct {
	Experiment experiment.Experiment // valid; a zero Seed is drawn
	Dir        string                // result directory; must hold no results yet
	Scratch    string                // the lab's scratch directory
	Version    string                // of this program, for the record
	Command    []string              // the command line, for the record
	Progress   Progress              // must not be nil

	machines *Machines // where everything runs; nil: in this machine's lab
}

// Progress receives the events of an experiment, from one goroutine. Its methods must
// return quickly.
type Progress interface {
	// Start is called once, with the number of measurements to come.
	Start(measurements int)
	// Next is called before measurement number i, which belongs to the block.
	// remaining is the estimated time of this measurement and all that follow,
	// without those that are known to be impossible.
	Next(i, block int, job experiment.Job, remaining time.Duration)
	// Again is called before a measurement is repeated.
	Again(job experiment.Job)
	// Sample is called after each measurement.
	Sample(s cell.Sample)
	// Absent is called once for each network that can't be measured.
	Absent(a cell.Absent)
}

// Run runs the experiment and writes samples.jsonl and environment.json. When
// ctx ends, it stops within a second, keeps what was measured, marks it partial,
// and returns the context's cause.
func Run(ctx context.Context, cfg Config) error {
	cfg.Experiment = permitted(cfg.Experiment, mayUse)
	return start(ctx, cfg, func(*run) error { return nil })
}

// start is Run with a function to call before the first measurement.
func start(ctx context.Context, cfg Config, before func(*run) error) error {
	if cfg.Experiment.Seed == 0 {
		cfg.Experiment.Seed = schedule.NewSeed()
	}
	cpus, err := cfg.processors()
	if err != nil {
		return err
	}
	if err := raiseFileLimit(); err != nil {
		return err
	}
	env, err := newEnvironment(cfg)
	if err != nil {
		return err
	}
	env.Processors = cpus
	if err := os.MkdirAll(controlDir(cfg.Scratch), 0o700); err != nil {
		return fmt.Errorf("make a directory for sockets: %w", err)
	}
	st, err := newStore(cfg.Dir)
	if err != nil {
		return err
	}
	runtimes := newRuntimes(cfg)
	r := &run{
		Config: cfg, store: st, cpus: cpus,
		env:         env,
		runtimes:    runtimes,
		attachHosts: map[attachKey]*attacher.Host{}, beds: map[bedKey]*spanned.Bed{},
		absentSpecs: map[wiring.Spec]bool{}, failures: failures{}, possible: Possible(),
	}
	r.testbeds = newTestbeds(cfg.Scratch, runtimes, func(job experiment.Job, err error) { r.notClosed(job.Cell, err) })
	if cfg.machines != nil {
		r.possible, r.testbeds.build = cfg.machines.Possible, cfg.machines.build
	}
	err = r.measureAll(ctx, before)
	return errors.Join(err, r.finish(err == nil))
}

// newRuntimes returns the container runtimes for the experiment. It removes what
// earlier labs left behind.
func newRuntimes(cfg Config) *container.Set {
	if cfg.machines == nil {
		container.Sweep()
	}
	var programs []string
	for _, j := range cfg.Experiment.Jobs() {
		if e := j.Cell.Engine; e != engineCleat && !slices.Contains(programs, e) {
			programs = append(programs, e)
		}
	}
	return container.NewSet(container.Config{Scratch: cfg.Scratch, Share: []string{controlDir(cfg.Scratch)}, Programs: programs})
}

// raiseFileLimit raises the limit of open files of this process and its children to
// the hard limit: a thousand flows need more than the usual soft limit. The Go
// runtime does the same for this process, but restores the old limit in children
// unless it is set again.
func raiseFileLimit() error {
	var limit syscall.Rlimit
	err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit)
	if err == nil {
		limit.Cur = limit.Max
		err = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
	}
	if err != nil {
		return fmt.Errorf("raise the number of open files: %w", err)
	}
	return nil
}

// run is one experiment under way. It is used from one goroutine.
type run struct {
	Config
	store       *store
	cpus        []int
	env         Environment
	testbeds    *testbeds
	runtimes    *container.Set
	attachHosts map[attachKey]*attacher.Host
	beds        map[bedKey]*spanned.Bed // of the work "event"
	absentSpecs map[wiring.Spec]bool    // networks that can't be measured, and are recorded so
	failures    failures
	possible    func(experiment.Job) bool
	repeats     *repeats
	leftovers   []error // of networks that were not closed
}

func (r *run) measureAll(ctx context.Context, before func(*run) error) error {
	describe := r.env.describeHost
	if r.machines != nil {
		describe = func(ctx context.Context) error { return r.machines.describe(ctx, &r.env) }
	}
	if err := describe(ctx); err != nil {
		return err
	}
	if err := r.store.environment(r.env); err != nil {
		return err
	}
	if err := before(r); err != nil {
		return err
	}
	jobs := r.Experiment.Jobs()
	rounds := r.Experiment.Repeat + r.Experiment.Warmup
	calibrations := r.Experiment.Calibrations()
	r.Progress.Start(len(calibrations) + len(jobs)*rounds)
	r.repeats = newRepeats(len(jobs) * rounds)
	done := 0
	err := r.calibrate(ctx, jobs, func(job experiment.Job) {
		done++
		r.Progress.Next(done, 0, job, r.estimate(calibrations[done-1:])+time.Duration(rounds)*r.estimate(jobs))
	})
	if err != nil {
		return err
	}
	done = len(calibrations) // some may have been skipped
	all := parts(jobs)
	for n, part := range all {
		blocks := r.blocks(part)
		for i, block := range blocks {
			r.repeats.earn(len(block.Jobs))
			var bad []measurement
			for order, job := range block.Jobs {
				done++
				if r.givenUp(job) {
					continue
				}
				remaining := r.estimate(block.Jobs[order:]) + time.Duration(rounds-1-i)*r.estimate(block.Jobs) +
					time.Duration(rounds)*r.estimate(slices.Concat(all[n+1:]...))
				r.Progress.Next(done, block.Number, job, remaining)
				m := measurement{job, position{block.Number, order}}
				counts, err := r.job(ctx, m, 1)
				if err != nil {
					return err
				}
				if !counts {
					bad = append(bad, m)
				}
			}
			if err := r.repeats.spend(bad, func(m measurement, attempt int) (bool, error) { return r.again(ctx, m, attempt) }); err != nil {
				return err
			}
		}
		r.closeNetworks()
	}
	return nil
}

// parts divides jobs into those that measure traffic, which come first, and those that need many containers. Hundreds of
// these, with what looks after them, keep a part of a processor busy as long as they are there.
func parts(jobs []experiment.Job) (all [][]experiment.Job) {
	var traffic, containers []experiment.Job
	for _, j := range jobs {
		switch {
		case j.Work.Kind == experiment.Attach, j.Work.Kind == experiment.Burst, j.Work.Kind == experiment.Event,
			j.Work.Kind == experiment.Memory && catalog.RoleOf(j.Cell.Network) == catalog.Named:
			containers = append(containers, j)
		default:
			traffic = append(traffic, j)
		}
	}
	for _, part := range [][]experiment.Job{traffic, containers} {
		if len(part) > 0 {
			all = append(all, part)
		}
	}
	return all
}

// givenUp reports whether a job is not measured any more.
func (r *run) givenUp(job experiment.Job) bool {
	return r.absentSpecs[specOf(job)] || r.failures.hopeless(job)
}

// estimate returns about how long it takes to measure once each of the jobs that
// can be measured.
func (r *run) estimate(jobs []experiment.Job) time.Duration {
	var all time.Duration
	for _, j := range jobs {
		if !r.givenUp(j) && r.possible(j) {
			all += j.Estimate()
		}
	}
	return all
}

// blocks schedules the jobs. If not all networks can be kept at once, or be there at once, jobs of one
// network are grouped, so that each network is built once a block.
func (r *run) blocks(jobs []experiment.Job) []schedule.Block[experiment.Job] {
	plan := schedule.Plan{Repeat: r.Experiment.Repeat, Warmup: r.Experiment.Warmup, Seed: r.Experiment.Seed}
	if r.testbeds.plan(jobs) > maxNodes || slices.ContainsFunc(jobs, isStacked) {
		return schedule.Grouped(jobs, plan, specOf)
	}
	return schedule.Blocks(jobs, plan)
}

func (r *run) finish(complete bool) error {
	r.closeNetworks()
	r.env.Partial = !complete
	r.env.Ended = time.Now()
	err := errors.Join(r.leftovers...)
	return errors.Join(r.store.environment(r.env), r.store.close(), err, r.runtimes.Close())
}

// closeNetworks closes all networks that are kept.
func (r *run) closeNetworks() {
	r.testbeds.close()
	for key, h := range r.attachHosts {
		r.notClosed(cell.Cell{Network: key.spec.Network, Topology: "local"}, h.Close())
	}
	for key, b := range r.beds {
		r.notClosed(key.cell(), b.Close())
	}
	clear(r.attachHosts)
	clear(r.beds)
}

// notClosed notes that the network of a cell was not closed; nothing if err is nil. It is no fault of the job that is
// measured next, which goes on, but Run returns an error in the end.
func (r *run) notClosed(c cell.Cell, err error) {
	if err == nil {
		return
	}
	err = fmt.Errorf("close %s: %w", c.Network, err)
	r.leftovers = append(r.leftovers, err)
	r.env.notClosed(c, err.Error())
}

// position is the place of a measurement in the schedule.
type position struct {
	block int // 1 is the first that counts; 0 is the warm-up
	order int // within the block
}

// maxFailures is the number of measurements of a job, none of them successful,
// after which the job is given up: a program that can't do it takes the longest to
// fail.
const maxFailures = 4

// failures counts the failed measurements of each job until one succeeds.
type failures map[string]int

func (f failures) note(job experiment.Job, failed bool) {
	if !failed {
		f[job.ID()] = math.MinInt
	}
	f[job.ID()]++
}

func (f failures) hopeless(job experiment.Job) bool { return f[job.ID()] >= maxFailures }

// job measures one job of a block. done is true if the measurement must not be repeated. It returns only
// errors that end the experiment.
func (r *run) job(ctx context.Context, m measurement, attempt int) (done bool, err error) {
	job, at := m.job, m.at
	if err := r.machines.rulesOut(job); err != nil {
		return true, r.absentJob(job, err)
	}
	switch job.Work.Kind {
	case experiment.Setup:
		return true, r.setup(ctx, job, at)
	case experiment.Memory:
		if catalog.RoleOf(job.Cell.Network) == catalog.Named {
			return true, r.networkMemory(ctx, job, at)
		}
		return true, r.memory(ctx, job, at)
	case experiment.Burst:
		return true, r.burst(ctx, job, at)
	case experiment.Event:
		return true, r.event(ctx, job, at)
	case experiment.Attach:
		return true, r.attach(ctx, job, at)
	}
	done, err = r.attempt(ctx, job, at, attempt)
	if e, _ := catalog.Lookup(job.Cell.Network); e.Restless { // its program keeps a processor busy
		r.testbeds.dropFor(job)
	}
	return done, err
}

// again repeats a measurement, unless its job was given up meanwhile.
func (r *run) again(ctx context.Context, m measurement, attempt int) (done bool, err error) {
	if r.givenUp(m.job) {
		return true, nil
	}
	r.Progress.Again(m.job)
	return r.job(ctx, m, attempt)
}

// attempt takes one sample of a job. done is true if the sample counts, or if the
// measurement must not be repeated.
func (r *run) attempt(ctx context.Context, job experiment.Job, at position, attempt int) (done bool, err error) {
	if e, _ := catalog.Lookup(job.Cell.Network); e.Cold {
		defer r.testbeds.dropFor(job)
	}
	tb, err := r.testbeds.getRetrying(ctx, job)
	if err != nil && !r.testbeds.isProbed(job) {
		return true, r.absent(ctx, job, err)
	}
	s := newSample(job, at)
	s.Attempt = attempt
	switch {
	case err != nil: // it worked before
		s.Error = err.Error()
	case tb.probe.BlackHole:
		r.env.note(job.Cell, tb.facts)
		return true, r.absent(ctx, job, blackHole(tb.probe))
	default:
		r.env.note(job.Cell, tb.facts)
		measure := r.measure
		if job.Work.Kind == experiment.Start {
			measure = r.firstByte
		}
		if err := measure(ctx, tb, job, &s); err != nil {
			s.Error = err.Error()
		}
		s.LossSeed = tb.LossSeed
		s.Warnings = append(s.Warnings, tb.warnings()...)
		s.Warnings = append(s.Warnings, placementWarnings(job.Cell.Placement, len(r.cpus))...)
	}
	if err := r.record(ctx, s); err != nil {
		return true, err
	}
	r.failures.note(job, s.Error != "")
	if s.Error == "" && (s.Bad.Text == "" || s.Warmup()) {
		return true, nil
	}
	if s.Error != "" && tb != nil {
		tb.stopServers() // a server may be what failed
	}
	return false, nil
}

// newSample returns an empty sample of a job, begun now.
func newSample(job experiment.Job, at position) cell.Sample {
	return cell.Sample{Cell: job.Cell, Work: job.Work.Kind, Rate: job.Rate, Block: at.block, Order: at.order, Attempt: 1, Started: time.Now()}
}

// record stores a sample. It returns the context's cause instead if ctx has ended,
// which spoils a measurement.
func (r *run) record(ctx context.Context, s cell.Sample) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := r.store.add(s); err != nil {
		return err
	}
	r.Progress.Sample(s)
	return nil
}

// absentJob records that a job can't be measured, although its network may be.
func (r *run) absentJob(job experiment.Job, err error) error {
	a := Absence(err)
	a.Cell, a.Work = job.Cell, job.Work.Kind
	r.failures[job.ID()] = maxFailures
	r.Progress.Absent(a)
	return r.store.add(a)
}

// absent records that a job can't be measured, nor any other that needs the same
// network.
func (r *run) absent(ctx context.Context, job experiment.Job, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	r.absentSpecs[specOf(job)] = true
	for _, j := range r.Experiment.Jobs() {
		if specOf(j) != specOf(job) {
			continue
		}
		a := Absence(err)
		a.Cell, a.Work = j.Cell, j.Work.Kind
		if err := r.store.add(a); err != nil {
			return err
		}
		if j.ID() == job.ID() {
			r.Progress.Absent(a)
		}
	}
	return nil
}

// isAbsence reports whether err means that a network can't be built here or can't
// carry the traffic, so that another attempt is pointless.
func isAbsence(err error) bool {
	return errors.As(err, new(*link.Lack)) || errors.As(err, new(*wiring.NotApplicable))
}

// Absence returns why a network can't be measured.
func Absence(err error) cell.Absent {
	var lack *link.Lack
	var never *wiring.NotApplicable
	switch {
	case errors.As(err, &never):
		return cell.Absent{Reason: never.Why, NotApplicable: true}
	case errors.As(err, &lack):
		return cell.Absent{Reason: lack.What + ": " + lack.Reason, Remedy: lack.Remedy}
	}
	return cell.Absent{Reason: err.Error()}
}

// Possible returns a function that reports whether this lab has what a job needs, as
// far as that is known before it is tried. The function is not safe for concurrent
// use.
func Possible() func(experiment.Job) bool {
	known := map[[2]string]bool{}
	return func(j experiment.Job) bool {
		needs := [2]string{j.Cell.Network, j.Cell.Runtime}
		can, ok := known[needs]
		if !ok {
			can = Check(j.Cell.Network) == nil && container.Check(j.Cell.Runtime) == nil
			known[needs] = can
		}
		return can
	}
}

// CheckRuntime returns nil if ends can run in the runtime of that name, in a lab
// that root makes or another user; else what is missing.
func CheckRuntime(name string, root bool) error { return container.CheckIn(name, root) }

// blackHole returns the error of a path that passes small packets and drops full-size
// ones.
func blackHole(p probe) error {
	return fmt.Errorf("control messages pass, data does not: packets of %d bytes, the link's MTU, do not arrive; the largest that do have %d bytes",
		p.LinkMTU, p.PathMTU)
}
