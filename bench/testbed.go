package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"cleat/bench/catalog"
	"cleat/bench/container"
	"cleat/bench/experiment"
	"cleat/bench/remote"
	"cleat/bench/wiring"
	"cleat/lab"
	"cleat/link"
)

// maxNodes is the most network namespaces that are kept at once. Each costs about a
// megabyte of kernel memory, and its servers more.
const maxNodes = 640

// testbed is a network with servers on its far ends.
type testbed struct {
	*wiring.Network
	scratch string
	job     experiment.Job // the first that needed it
	servers []*server      // one a pair, nil until needed
	probe   probe
	facts   NetworkFacts
}

// testbeds is a cache of testbeds, least recently used first.
type testbeds struct {
	scratch string
	cached  []*testbed
	pairs   map[wiring.Spec]int   // the most pairs that any job needs
	probed  map[wiring.Spec]probe // of networks that worked

	runtimes *container.Set

	build    func(context.Context, wiring.Config) (*wiring.Network, error)
	closeOne func(*testbed) error
	// notClosed is called with the job of a testbed that can't be closed. The jobs that come after can be measured
	// all the same.
	notClosed func(experiment.Job, error)
}

func newTestbeds(scratch string, runtimes *container.Set, notClosed func(experiment.Job, error)) *testbeds {
	return &testbeds{build: wiring.Build, closeOne: (*testbed).close, notClosed: notClosed, scratch: scratch, pairs: map[wiring.Spec]int{}, probed: map[wiring.Spec]probe{}, runtimes: runtimes}
}

// plan records how many pairs each network needs, so that it is built only once. It
// returns the number of nodes of all networks that are kept.
func (b *testbeds) plan(jobs []experiment.Job) (nodes int) {
	var rootless int // of the largest of them: one is kept
	for _, j := range jobs {
		b.pairs[specOf(j)] = max(b.pairs[specOf(j)], j.Cell.Pairs)
	}
	for spec, pairs := range b.pairs {
		e, _ := catalog.Lookup(spec.Network)
		switch {
		case e.Cold: // never kept
		case e.Role == catalog.Rootless:
			rootless = max(rootless, nodesFor(pairs))
		default:
			nodes += nodesFor(pairs)
		}
	}
	return nodes + rootless
}

// nodesFor returns the most nodes that a network has: two containers a pair, two
// hosts and a switch.
func nodesFor(pairs int) int { return 2*pairs + 3 }

// get returns the testbed for a job, and builds it if needed. With an error it may
// return a testbed as well.
func (b *testbeds) get(ctx context.Context, job experiment.Job) (*testbed, error) {
	if i := b.index(job); i >= 0 {
		tb := b.cached[i]
		b.cached = append(slices.Delete(b.cached, i, i+1), tb)
		return tb, nil
	}
	b.dropRootless(job)
	b.dropStacked(job)
	spec := specOf(job)
	cfg := wiring.Config{Spec: spec, Pairs: max(b.pairs[spec], 1), Scratch: b.scratch}
	b.makeRoom(nodesFor(cfg.Pairs))
	var err error
	if cfg.ContainerRuntime, err = b.runtimes.Take(ctx, job.Cell.Runtime); err != nil {
		return nil, err
	}
	n, err := b.build(ctx, cfg)
	if err != nil {
		return nil, err
	}
	err = b.add(ctx, job, n)
	return b.cached[len(b.cached)-1], err
}

// getRetrying is get with a second attempt if the error may be temporary: on a busy
// machine a tunnel may not come up in time, or a full-size packet may be lost, and a
// network that is absent once is not measured again.
func (b *testbeds) getRetrying(ctx context.Context, job experiment.Job) (*testbed, error) {
	tb, err := b.get(ctx, job)
	if ctx.Err() != nil || catalog.RoleOf(job.Cell.Network) == catalog.Existing || !isTemporary(tb, err) {
		return tb, err
	}
	b.dropFor(job)
	if err == nil {
		delete(b.probed, specOf(job))
	}
	return b.get(ctx, job)
}

// isProbed reports whether a job's network could be built once.
func (b *testbeds) isProbed(job experiment.Job) bool {
	_, ok := b.probed[specOf(job)]
	return ok
}

// isTemporary reports whether another call of get may return something better: not
// if all is well, or if the error says what this machine or a design lacks.
func isTemporary(tb *testbed, err error) bool {
	if err == nil {
		return tb.probe.BlackHole
	}
	return !isAbsence(err) && !errors.As(err, new(*link.ParamError))
}

// index returns the position of a job's testbed in the cache, or -1.
func (b *testbeds) index(job experiment.Job) int {
	return slices.IndexFunc(b.cached, func(o *testbed) bool { return specOf(o.job) == specOf(job) })
}

// add caches a testbed for a network and probes its path. A cold network is not
// probed again when it is rebuilt: its path is the same, and full-size packets would
// teach the network what its links are like.
func (b *testbeds) add(ctx context.Context, job experiment.Job, n *wiring.Network) error {
	tb := &testbed{Network: n, scratch: b.scratch, job: job, servers: make([]*server, len(n.Pairs)+len(n.Cross)), facts: NetworkFacts{Notes: n.Notes}}
	b.cached = append(b.cached, tb)
	known, ok := b.probed[specOf(job)]
	if _, isZoo := job.Case(); isZoo { // losses and long round trips would look like a black hole
		b.probed[specOf(job)] = known
		return nil
	}
	if e, _ := catalog.Lookup(job.Cell.Network); ok && e.Cold {
		tb.setProbe(known)
		return nil
	}
	if err := tb.probePath(ctx); err != nil {
		return err
	}
	b.probed[specOf(job)] = tb.probe
	return nil
}

func specOf(job experiment.Job) wiring.Spec { return wiring.SpecOf(job.Cell) }

// makeRoom closes the least recently used testbeds until so many more nodes fit.
func (b *testbeds) makeRoom(nodes int) {
	for _, o := range b.cached {
		nodes += o.NodeCount()
	}
	for nodes > maxNodes && len(b.cached) > 0 {
		oldest := b.cached[0]
		nodes -= oldest.NodeCount()
		b.cached = b.cached[1:]
		b.drop(oldest)
	}
}

// drop closes a testbed that is no longer cached.
func (b *testbeds) drop(tb *testbed) {
	if err := b.closeOne(tb); err != nil {
		b.notClosed(tb.job, err)
	}
}

// dropRootless closes the testbeds of all rootless networks if the job needs another
// one. Their programs run as one user, who may have a limited number of pages in pipes
// (fs.pipe-user-pages-soft). pasta takes as many as it gets when it starts, and beside
// an idle pasta every other program that splices would be measured without pipes.
func (b *testbeds) dropRootless(job experiment.Job) {
	if catalog.RoleOf(job.Cell.Network) != catalog.Rootless {
		return
	}
	b.dropWhere(func(o *testbed) bool { return catalog.RoleOf(o.job.Cell.Network) == catalog.Rootless })
}

// dropStacked closes the testbeds of links on machines' devices if the job needs another
// one: on the segment that the machines share, all have the same addresses.
func (b *testbeds) dropStacked(job experiment.Job) {
	if !isStacked(job) {
		return
	}
	b.dropWhere(func(o *testbed) bool { return isStacked(o.job) })
}

func (b *testbeds) dropWhere(match func(*testbed) bool) {
	b.cached = slices.DeleteFunc(b.cached, func(o *testbed) bool {
		drop := match(o)
		if drop {
			b.drop(o)
		}
		return drop
	})
}

func (b *testbeds) dropFor(job experiment.Job) {
	i := b.index(job)
	if i < 0 {
		return
	}
	tb := b.cached[i]
	b.cached = slices.Delete(b.cached, i, i+1)
	b.drop(tb)
}

func (b *testbeds) close() {
	for _, o := range b.cached {
		b.drop(o)
	}
	b.cached = nil
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
	control string // path of its control socket where the client runs; "" if it can't have one
	stop    func() // ends what joins that path and the server, if it is on another machine; nil: nothing
}

// controlFlag returns the flag by which clients reach the control socket.
func (s *server) controlFlag() []string {
	if s.control == "" {
		return nil
	}
	return []string{"--control", "unix:" + s.control}
}

// leave ends what joins the client's control socket and the server.
func (s *server) leave() {
	if s.stop != nil {
		s.stop()
	}
}

// pair returns the network's own pairs and then those beside it.
func (b *testbed) pair(i int) wiring.Pair {
	if i < len(b.Pairs) {
		return b.Pairs[i]
	}
	return b.Cross[i-len(b.Pairs)]
}

// serve returns the server of pair i with that engine on those processors, started
// if needed.
func (b *testbed) serve(ctx context.Context, i int, engine string, cpus []int) (*server, error) {
	if s := b.servers[i]; s != nil {
		if s.engine == engine && slices.Equal(s.cpus, cpus) {
			return s, nil
		}
		b.stopServer(i)
	}
	p := b.pair(i)
	s := &server{engine: engine, cpus: cpus}
	args := []string{lab.Self, "traffic", "serve", "--json", "--listen", p.Listen.String(), "--engine", engine}
	if _, onHost := p.Server.(lab.Host); !onHost && engine == engineCleat {
		s.control = fmt.Sprintf("%s/%p-%d.sock", controlDir(b.scratch), b, i)
		listen := s.control
		if remote.IsRemote(p.Server) {
			var err error
			if s.control, listen, s.stop, err = remote.JoinSockets(ctx, p.Client, p.Server); err != nil {
				return nil, err
			}
		}
		args = append(args, "--control", "unix:"+listen)
	}
	if err := startServer(ctx, p, s, args); err != nil {
		s.leave()
		return nil, err
	}
	b.servers[i] = s
	return s, nil
}

// controlDir returns the directory of control sockets. Both ends of a pair see it,
// whatever runtime they run in.
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
	// Nobody reads the server's later lines, but it must be able to write them. The
	// goroutine ends with the server.
	go func() {
		io.Copy(io.Discard, out)
		out.Close()
	}()
	return nil
}

// serverTimeout bounds how long a server takes to listen: 128 of them start together
// on a small machine.
const serverTimeout = 20 * time.Second

// firstLine reads the first line of output within serverTimeout.
func firstLine(ctx context.Context, f *os.File) (string, error) {
	if err := f.SetReadDeadline(time.Now().Add(serverTimeout)); err != nil {
		return "", err
	}
	defer context.AfterFunc(ctx, func() { f.SetReadDeadline(time.Now()) })()
	line, err := bufio.NewReaderSize(f, 4096).ReadString('\n')
	if err != nil && line == "" {
		return "", fmt.Errorf("no output: %w", err)
	}
	return line, f.SetReadDeadline(time.Time{})
}

func (b *testbed) stopServer(i int) {
	if s := b.servers[i]; s != nil {
		s.proc.Kill()
		s.proc.Wait() // the status is that of the kill
		s.leave()
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
