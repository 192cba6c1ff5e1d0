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
	"cleat/bench/wiring"
	"cleat/lab"
	"cleat/link"
)

// Config says what to run and where to keep the results.
type Config struct {
	Experiment experiment.Experiment // valid; a zero Seed is drawn here
	Dir        string                // result directory; must hold no results yet
	Scratch    string                // the lab's scratch directory
	Version    string                // of this program, for the record
	Command    []string              // the command line, for the record
	Progress   Progress              // nil: none
}

// Progress is told what happens, from one goroutine. Its methods must return
// quickly.
type Progress interface {
	// Start is called once, with the number of measurements to come.
	Start(measurements int)
	// Next is called before measurement number i, which is of that block. By the
	// estimates of their jobs, it and all that follow take so long together; what
	// turned out to be absent or hopeless is not among them.
	Next(i, block int, job experiment.Job, toDo time.Duration)
	// Sample is called after each measurement.
	Sample(s cell.Sample)
	// Absent is called once for each network that can't be measured.
	Absent(a cell.Absent)
}

// Run runs the experiment and writes samples.jsonl and environment.json. When
// ctx ends it stops within a second, keeps what was measured, marked partial,
// and returns the context's cause.
func Run(ctx context.Context, cfg Config) error {
	cfg.Experiment = permitted(cfg.Experiment, mayUse)
	return start(ctx, cfg, func(*run) error { return nil })
}

// start is Run, with something to do between the first record and the first
// measurement.
func start(ctx context.Context, cfg Config, before func(*run) error) error {
	if cfg.Experiment.Seed == 0 {
		seed, err := schedule.NewSeed()
		if err != nil {
			return err
		}
		cfg.Experiment.Seed = seed
	}
	if cfg.Progress == nil {
		cfg.Progress = silent{}
	}
	cpus, err := processors()
	if err != nil {
		return err
	}
	if err := raiseFiles(); err != nil {
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
		env:      env,
		testbeds: newTestbeds(cfg.Scratch, runtimes), runtimes: runtimes,
		attachHosts: map[wiring.Spec]*attacher.Host{},
		gone:        map[wiring.Spec]bool{}, failed: failures{}, possible: Possible(),
	}
	err = r.all(ctx, before)
	return errors.Join(err, r.finish(err == nil))
}

// newRuntimes is what the experiment's ends may run in. What earlier labs left of
// them goes.
func newRuntimes(cfg Config) *container.Set {
	container.Sweep()
	var programs []string
	for _, j := range cfg.Experiment.Jobs() {
		if e := j.Cell.Engine; e != engineCleat && !slices.Contains(programs, e) {
			programs = append(programs, e)
		}
	}
	return container.NewSet(container.Config{Scratch: cfg.Scratch, Share: []string{controlDir(cfg.Scratch)}, Programs: programs})
}

// raiseFiles lets this process and all that it starts open as many files as may
// be: a thousand flows are more than the usual limit leaves room for. The Go
// runtime has done the same for this process, but takes it back for children
// unless the limit is set again.
func raiseFiles() error {
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
	attachHosts map[wiring.Spec]*attacher.Host
	gone        map[wiring.Spec]bool // what can't be measured, and has been said
	failed      failures
	possible    func(experiment.Job) bool
	// again is how many measurements may still be taken again: on a machine
	// that is never quiet the experiment must end all the same.
	again int
}

func (r *run) all(ctx context.Context, before func(*run) error) error {
	if err := r.env.describeHost(ctx); err != nil {
		return err
	}
	if err := r.store.environment(r.env); err != nil {
		return err
	}
	if err := before(r); err != nil {
		return err
	}
	jobs := r.Experiment.Jobs()
	blocks := r.blocks(jobs)
	r.Progress.Start(len(jobs) * len(blocks))
	r.again = max(maxAttempts, len(jobs)*len(blocks)/againShare)
	done := 0
	for i, block := range blocks {
		for order, job := range block.Jobs {
			done++
			if r.givenUp(job) {
				continue
			}
			toDo := r.estimate(block.Jobs[order:]) + time.Duration(len(blocks)-1-i)*r.estimate(block.Jobs)
			r.Progress.Next(done, block.Number, job, toDo)
			if err := r.job(ctx, job, position{block.Number, order}); err != nil {
				return err
			}
		}
	}
	return nil
}

// givenUp tells whether a job is not to be measured any more.
func (r *run) givenUp(job experiment.Job) bool { return r.gone[specOf(job)] || r.failed.hopeless(job) }

// estimate is about how long it takes to measure once each of these jobs that can
// be measured.
func (r *run) estimate(jobs []experiment.Job) time.Duration {
	var all time.Duration
	for _, j := range jobs {
		if !r.givenUp(j) && r.possible(j) {
			all += j.Estimate()
		}
	}
	return all
}

// blocks schedules the jobs. Where not all wirings can be kept at once, each is
// made once a block.
func (r *run) blocks(jobs []experiment.Job) []schedule.Block[experiment.Job] {
	plan := schedule.Plan{Repeat: r.Experiment.Repeat, Warmup: r.Experiment.Warmup, Seed: r.Experiment.Seed}
	if r.testbeds.plan(jobs) > maxNodes {
		return schedule.Grouped(jobs, plan, specOf)
	}
	return schedule.Blocks(jobs, plan)
}

// finish writes what became known and lets everything go.
func (r *run) finish(complete bool) error {
	r.env.Partial = !complete
	r.env.Ended = time.Now()
	return errors.Join(r.store.environment(r.env), r.store.close(), r.testbeds.close(), r.closeAttachHosts(), r.runtimes.Close())
}

// position is where in the schedule a measurement stands.
type position struct {
	block int // 1 is the first that counts; 0 is warm-up
	order int // within the block
}

// mostFailures is after how many measurements of a job, none of which ever
// succeeded, it is not tried again: a program that can't do it takes longest to
// show that.
const mostFailures = 4

// failures counts the measurements of each job until one succeeds.
type failures map[string]int

func (f failures) note(job experiment.Job, failed bool) {
	if !failed {
		f[f.id(job)] = math.MinInt
	}
	f[f.id(job)]++
}

func (f failures) hopeless(job experiment.Job) bool { return f[f.id(job)] >= mostFailures }

func (failures) id(job experiment.Job) string { return job.Work.Kind + "|" + job.Cell.Key() }

// maxAttempts is how often one measurement is taken at most; againShare is the
// share of all measurements that may be taken again, one in so many.
const (
	maxAttempts = 3
	againShare  = 8
)

// job measures one job of a block. Only an error that ends the experiment is
// returned.
func (r *run) job(ctx context.Context, job experiment.Job, at position) error {
	switch job.Work.Kind {
	case experiment.Setup:
		return r.setup(ctx, job, at)
	case experiment.Memory:
		return r.memory(ctx, job, at)
	case experiment.Attach:
		return r.attach(ctx, job, at)
	}
	for attempt := 1; attempt <= maxAttempts; attempt++ {
		done, err := r.attempt(ctx, job, at, attempt)
		if done || err != nil {
			return errors.Join(err, r.letGo(job))
		}
	}
	return r.letGo(job)
}

// letGo closes a testbed whose program keeps a processor busy.
func (r *run) letGo(job experiment.Job) error {
	if e, _ := catalog.Lookup(job.Cell.Network); e.Restless {
		return r.testbeds.dropFor(job)
	}
	return nil
}

// attempt takes one sample of a job. It is done when that counts, or no other is
// to be taken.
func (r *run) attempt(ctx context.Context, job experiment.Job, at position, attempt int) (done bool, err error) {
	if e, _ := catalog.Lookup(job.Cell.Network); e.Cold {
		defer func() { err = errors.Join(err, r.testbeds.dropFor(job)) }()
	}
	bed, err := r.testbeds.takeTwice(ctx, job)
	if err != nil && !r.testbeds.worked(job) {
		return true, r.absent(ctx, job, err)
	}
	var s cell.Sample
	if err != nil { // it worked before: this once it did not
		s = cell.Sample{Cell: job.Cell, Work: job.Work.Kind, Started: time.Now(), Error: err.Error()}
	} else {
		r.env.note(job.Cell, bed.facts)
		if bed.probe.BlackHole {
			return true, r.absent(ctx, job, &blackHole{bed.probe})
		}
		measure := r.measure
		if job.Work.Kind == experiment.Start {
			measure = r.firstByte
		}
		s = measure(ctx, bed, job)
		s.Warnings = append(s.Warnings, bed.warnings()...)
	}
	if err := context.Cause(ctx); err != nil {
		return true, err
	}
	s.Block, s.Order, s.Attempt = at.block, at.order, attempt
	if err := r.store.sample(s); err != nil {
		return true, err
	}
	r.Progress.Sample(s)
	r.failed.note(job, s.Error != "")
	if counts := s.Bad == "" || s.Warmup(); counts && s.Error == "" || r.again == 0 {
		return true, nil
	}
	r.again--
	if s.Error != "" && bed != nil {
		// A server may be what failed: start afresh.
		bed.stopServers()
	}
	return false, nil
}

// absent records that a job, and every other that needs the same wiring, can't
// be measured.
func (r *run) absent(ctx context.Context, job experiment.Job, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	r.gone[specOf(job)] = true
	for _, j := range r.Experiment.Jobs() {
		if specOf(j) != specOf(job) {
			continue
		}
		a := Absence(err)
		a.Cell, a.Work = j.Cell, j.Work.Kind
		if err := r.store.absent(a); err != nil {
			return err
		}
		if j.Work.Kind == job.Work.Kind && j.Cell.Key() == job.Cell.Key() {
			r.Progress.Absent(a)
		}
	}
	return nil
}

// Absence puts the reason why a network can't be measured into words.
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

// silent is the Progress of nobody.
type silent struct{}

func (silent) Start(int)                                    {}
func (silent) Next(int, int, experiment.Job, time.Duration) {}
func (silent) Sample(cell.Sample)                           {}
func (silent) Absent(cell.Absent)                           {}

// Available lists every network of the catalogue that this lab can wire, and
// what the others lack.
func Available() []Availability {
	var out []Availability
	for _, e := range catalog.All() {
		out = append(out, Availability{Network: e.Name, Err: check(e.Name)})
	}
	return out
}

// Possible tells of jobs whether this lab has what they need, as far as that shows
// before it is tried. What it returns is used from one goroutine.
func Possible() func(experiment.Job) bool {
	known := map[[2]string]bool{}
	return func(j experiment.Job) bool {
		needs := [2]string{j.Cell.Network, j.Cell.Runtime}
		can, ok := known[needs]
		if !ok {
			can = check(j.Cell.Network) == nil && container.Check(j.Cell.Runtime) == nil
			known[needs] = can
		}
		return can
	}
}

// Availability says whether a network can be made; Err is nil if so.
type Availability struct {
	Network string
	Err     error
}

// CheckRuntime is nil when ends can run in the runtime of that name, in a lab
// that root makes or another user; else it says what is missing.
func CheckRuntime(name string, root bool) error { return container.CheckIn(name, root) }

// flavour is the kind of lab around this process.
func flavour() string {
	f, _ := lab.Inside()
	return f.String()
}

// blackHole says that a path passes small packets and swallows full-size ones.
type blackHole struct{ probe probe }

func (b *blackHole) Error() string {
	return fmt.Sprintf("control messages pass, data does not: packets of %d bytes, the link's MTU, do not arrive; the largest that do have %d bytes",
		b.probe.LinkMTU, b.probe.PathMTU)
}
