package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"cleat/bench/catalog"
	"cleat/bench/container"
	"cleat/bench/experiment"
	"cleat/bench/wiring"
	"cleat/lab"
	"cleat/link"
)

// maxNodes is how many network namespaces are kept at once; each costs about a
// megabyte of kernel memory, and its servers more.
const maxNodes = 640

// testbed is a network with the servers on its far ends.
type testbed struct {
	*wiring.Network
	scratch string
	job     experiment.Job // the first that asked for it
	servers []*server      // one a pair, nil until needed
	probe   probe
	facts   NetworkFacts
}

// testbeds is a cache of the testbeds that stand, least recently used first.
type testbeds struct {
	scratch string
	made    []*testbed
	pairs   map[wiring.Spec]int // the most pairs that any job needs
	probed  map[wiring.Spec]probe

	runtimes *container.Set
}

func newTestbeds(scratch string, runtimes *container.Set) *testbeds {
	return &testbeds{scratch: scratch, pairs: map[wiring.Spec]int{}, probed: map[wiring.Spec]probe{}, runtimes: runtimes}
}

// plan looks ahead, so that each wiring is made once with pairs enough, and
// says how many nodes all wirings together have.
func (b *testbeds) plan(jobs []experiment.Job) (nodes int) {
	for _, j := range jobs {
		b.pairs[specOf(j)] = max(b.pairs[specOf(j)], j.Cell.Pairs)
	}
	for w, pairs := range b.pairs {
		if e, _ := catalog.Lookup(w.Network); !e.Cold { // those are never kept
			nodes += nodesFor(pairs)
		}
	}
	return nodes
}

// nodesFor is the most nodes that a wiring has: two containers a pair, two
// hosts and a switch.
func nodesFor(pairs int) int { return 2*pairs + 3 }

// take returns the bed for a job, made now if need be.
func (b *testbeds) take(ctx context.Context, job experiment.Job) (*testbed, error) {
	key := specOf(job)
	i := slices.IndexFunc(b.made, func(o *testbed) bool { return specOf(o.job) == key })
	if i >= 0 {
		got := b.made[i]
		b.made = append(slices.Delete(b.made, i, i+1), got)
		return got, nil
	}
	cfg := wiring.Config{Spec: key, Pairs: max(b.pairs[key], 1), Scratch: b.scratch}
	if err := b.makeRoom(nodesFor(cfg.Pairs)); err != nil {
		return nil, err
	}
	var err error
	if cfg.ContainerRuntime, err = b.runtimes.Take(ctx, job.Cell.Runtime); err != nil {
		return nil, err
	}
	n, err := wiring.Build(ctx, cfg)
	if err != nil {
		return nil, err
	}
	err = b.add(ctx, job, n)
	return b.made[len(b.made)-1], err
}

// takeTwice is take, tried once more where what failed need not fail again: on a
// busy machine a tunnel may not come up in time, or a full-size packet be lost,
// and what is absent once is not measured again.
func (b *testbeds) takeTwice(ctx context.Context, job experiment.Job) (*testbed, error) {
	got, err := b.take(ctx, job)
	if ctx.Err() != nil || catalog.RoleOf(job.Cell.Network) == catalog.Existing || !worthAnother(got, err) {
		return got, err
	}
	if dropped := b.dropFor(job); dropped != nil {
		return nil, errors.Join(err, dropped)
	}
	if err == nil {
		delete(b.probed, specOf(job))
	}
	return b.take(ctx, job)
}

// worthAnother tells whether what take returned may be better the next time: not
// when all is well, or when the error says what this machine or a design lacks.
func worthAnother(got *testbed, err error) bool {
	if err == nil {
		return got.probe.BlackHole
	}
	var lack *link.Lack
	var never *wiring.NotApplicable
	var param *link.ParamError
	return !errors.As(err, &lack) && !errors.As(err, &never) && !errors.As(err, &param)
}

// adopt takes a wiring that was not made here for a job.
func (b *testbeds) adopt(ctx context.Context, job experiment.Job, n *wiring.Network) error {
	key := specOf(job)
	if slices.ContainsFunc(b.made, func(o *testbed) bool { return specOf(o.job) == key }) {
		return nil
	}
	return b.add(ctx, job, n)
}

// add keeps a wiring and looks at it once. What is to begin cold is not looked at
// again when it is made anew: its path is the same, and full-size packets would
// teach it what its links are like.
func (b *testbeds) add(ctx context.Context, job experiment.Job, n *wiring.Network) error {
	got := &testbed{Network: n, scratch: b.scratch, job: job, servers: make([]*server, len(n.Pairs))}
	b.made = append(b.made, got)
	got.facts = got.lookAround()
	known, ok := b.probed[specOf(job)]
	if e, _ := catalog.Lookup(job.Cell.Network); ok && e.Cold {
		got.take(known)
		return nil
	}
	if err := got.probePath(ctx); err != nil {
		return err
	}
	b.probed[specOf(job)] = got.probe
	return nil
}

// specOf describes the network that a job needs.
func specOf(job experiment.Job) wiring.Spec { return wiring.SpecOf(job.Cell) }

// makeRoom drops the least recently used beds until so many nodes fit.
func (b *testbeds) makeRoom(nodes int) error {
	for _, o := range b.made {
		nodes += o.NodeCount()
	}
	for nodes > maxNodes && len(b.made) > 0 {
		oldest := b.made[0]
		nodes -= oldest.NodeCount()
		b.made = b.made[1:]
		if err := oldest.close(); err != nil {
			return err
		}
	}
	return nil
}

// dropFor closes the bed of a job, if there is one.
func (b *testbeds) dropFor(job experiment.Job) error {
	i := slices.IndexFunc(b.made, func(o *testbed) bool { return specOf(o.job) == specOf(job) })
	if i < 0 {
		return nil
	}
	o := b.made[i]
	b.made = slices.Delete(b.made, i, i+1)
	return o.close()
}

// worked tells whether a bed for the job was there before.
func (b *testbeds) worked(job experiment.Job) bool {
	_, ok := b.probed[specOf(job)]
	return ok
}

func (b *testbeds) close() error {
	var errs []error
	for _, o := range b.made {
		errs = append(errs, o.close())
	}
	b.made = nil
	return errors.Join(errs...)
}

func (b *testbed) close() error {
	b.stopServers()
	return b.Network.Close()
}

// server is a running `cleat traffic serve`.
type server struct {
	proc    lab.Proc
	engine  string
	cpus    []int
	control string // path of its control socket; "" where it can't have one
}

// serve makes sure that pair i has a server of that engine on those processors.
func (b *testbed) serve(ctx context.Context, i int, engine string, cpus []int) (*server, error) {
	if s := b.servers[i]; s != nil {
		if s.engine == engine && slices.Equal(s.cpus, cpus) {
			return s, nil
		}
		b.stopServer(i)
	}
	p := b.Pairs[i]
	s := &server{engine: engine, cpus: cpus}
	args := []string{lab.Self, "traffic", "serve", "--json", "--listen", p.Listen.String(), "--engine", engine}
	if _, onHost := p.Server.(lab.Host); !onHost && engine == engineCleat {
		s.control = fmt.Sprintf("%s/%p-%d.sock", controlDir(b.scratch), b, i)
		args = append(args, "--control", "unix:"+s.control)
	}
	if err := startServer(ctx, p, s, args); err != nil {
		return nil, err
	}
	b.servers[i] = s
	return s, nil
}

// controlDir is where control sockets are, which both ends of a pair must see, in
// whatever they run.
func controlDir(scratch string) string { return filepath.Join(scratch, "control") }

// engineCleat is the engine built into this program.
const engineCleat = "cleat"

// startServer starts a server and waits for the line that says it is ready.
func startServer(ctx context.Context, p wiring.Pair, s *server, args []string) error {
	out, in, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	s.proc, err = p.Server.Start(lab.Command{Args: args, CPU: s.cpus, Stdout: in, Stderr: in})
	in.Close()
	if err != nil {
		out.Close()
		return err
	}
	line, err := firstLine(ctx, out)
	if err == nil && !strings.Contains(line, `"listening"`) {
		err = errors.New(strings.TrimSpace(line))
	}
	if err != nil {
		s.proc.Kill()
		s.proc.Wait()
		out.Close()
		return fmt.Errorf("start a server at %s: %w", p.Listen, err)
	}
	// The server's later lines are of no interest, but it must be able to
	// write them: the reader goes with the server.
	go func() {
		defer out.Close()
		drain(out)
	}()
	return nil
}

// serverStart is how long a server may take to listen; 128 of them start
// together on a small machine.
const serverStart = 20 * time.Second

func firstLine(ctx context.Context, f *os.File) (string, error) {
	deadline := time.Now().Add(serverStart)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	if err := f.SetReadDeadline(deadline); err != nil {
		return "", err
	}
	stop := context.AfterFunc(ctx, func() { f.SetReadDeadline(time.Now()) })
	defer stop()
	line, err := bufio.NewReaderSize(f, 4096).ReadString('\n')
	if err != nil && line == "" {
		return "", fmt.Errorf("it said nothing: %w", err)
	}
	return line, f.SetReadDeadline(time.Time{})
}

func drain(f *os.File) {
	buf := make([]byte, 4096)
	for {
		if _, err := f.Read(buf); err != nil {
			return
		}
	}
}

func (b *testbed) stopServer(i int) {
	if s := b.servers[i]; s != nil {
		s.proc.Kill()
		s.proc.Wait() // it was killed: how it ended says nothing
		b.servers[i] = nil
	}
}

func (b *testbed) stopServers() {
	for _, s := range b.servers {
		if s != nil {
			s.proc.Kill() // all, before any is waited for
		}
	}
	for i := range b.servers {
		b.stopServer(i)
	}
}
