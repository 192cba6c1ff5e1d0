package wiring

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"cleat/bench/catalog"
	"cleat/bench/container"
	"cleat/lab"
	"cleat/link"
)

const (
	basePort = 5210 // of the first pair's server; pair i uses basePort+i
	maxPairs = 128  // of one network
)

// Config is what Build needs beside the description of the network.
type Config struct {
	Spec
	Pairs   int    // 1…128
	Scratch string // directory for sockets, databases and configurations
	Program string // path of cleat, for named networks; "": this program
	// ContainerRuntime is Spec.Runtime, opened; nil: native.
	ContainerRuntime *container.Runtime
	// AllowIsolated permits a network whose containers can't reach each other. Setup can
	// be timed there all the same.
	AllowIsolated bool
}

// Pair is one client–server pair.
type Pair struct {
	Client, Server lab.Runner
	Listen         netip.AddrPort // the server binds it
	Dial           netip.AddrPort // the client dials it
	Congestion     string         // congestion control that the pair's sockets must use; "": any

	// ClientNode sends through its link Device. Both are zero where the client runs
	// on no node of the lab, or the device is not known.
	ClientNode *lab.Node
	Device     string
}

// Network is a built network, ready for traffic. It is used from one goroutine,
// except that Play may run beside the traffic.
type Network struct {
	Pairs []Pair
	// Cross are pairs beside the network's own, each over one of its links: what they send
	// competes with the network.
	Cross []Pair
	Notes []string // what a reader of the results must know

	// LossSeed decides which packets the links lose and what else is random about them; 0: no relay carries them, or
	// its seed is that of a case of the zoo.
	LossSeed uint64

	cfg        Config
	side       *Side           // nil: both sides are here
	ctx        context.Context // bounds building
	dir        string
	nodes      []*lab.Node
	containers []*lab.Node
	ovsPorts   []*link.Link
	programs   []lab.Proc
	cleanups   []func() error // called in reverse order

	// nativeEnds is set by a builder that uses the container runtime for the
	// network's own programs. Traffic's ends are native then.
	nativeEnds bool

	// play applies the scripted link events (death, flap) during a measurement; nil:
	// there are none.
	play func(ctx context.Context, from time.Time, whole time.Duration) error

	relay *zooRelay // of the links of a case of the zoo; nil: none

	// launch runs a command in a new container that a rootless network's program
	// attaches; nil for other networks.
	launch func(context.Context, lab.Command) (p lab.Proc, end func() error, err error)

	isolated  bool          // no traffic passes between the containers
	buildTime time.Duration // without nodeTime
	nodeTime  time.Duration // spent on hosts and on empty namespaces
}

// NotApplicable is the error for a network that by design can't carry this traffic.
type NotApplicable struct{ Why string }

func (n *NotApplicable) Error() string { return "not applicable: " + n.Why }

// ErrUnknown: no network has that name.
var ErrUnknown = errors.New("unknown network")

// Build builds a network. The error wraps a *link.Lack where the machine lacks
// something, and a *NotApplicable where the network's design rules the Config out. On
// any error nothing is left behind.
func Build(ctx context.Context, cfg Config) (*Network, error) {
	entry, _ := catalog.Lookup(cfg.Network)
	build := builders[cfg.Network]
	if build == nil {
		return nil, fmt.Errorf("%w %q", ErrUnknown, cfg.Network)
	}
	return buildWith(ctx, cfg, entry, build, nil)
}

// buildWith is Build, or BuildSide if side is not nil.
func buildWith(ctx context.Context, cfg Config, entry catalog.Entry, build func(*Network) error, side *Side) (*Network, error) {
	notApplicable := checkApplicable(entry, cfg)
	if notApplicable != nil && !(cfg.AllowIsolated && entry.Isolates) {
		return nil, notApplicable
	}
	if err := checkAvailable(entry); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(cfg.Scratch, cfg.Network+"-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for %s: %w", cfg.Network, err)
	}
	if cfg.AllowIsolated && cfg.Network == "macvlan-passthru" {
		cfg.Topology = "switched" // a parent carries only one passthru device
	}
	nw := &Network{ctx: ctx, dir: dir, cfg: cfg, side: side, isolated: notApplicable != nil}
	began := time.Now()
	err = build(nw)
	if err == nil && cfg.NoChecksum {
		err = nw.disableChecksumOffload()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("build %s: %w", cfg.Network, nw.withOutput(err)), nw.Close())
	}
	nw.buildTime = time.Since(began) - nw.nodeTime
	if err := nw.containEnds(); err != nil {
		return nil, errors.Join(err, nw.Close())
	}
	return nw, nil
}

// checkApplicable returns a *NotApplicable for what the network's design rules out.
func checkApplicable(e catalog.Entry, cfg Config) error {
	if cfg.Pairs < 1 || cfg.Pairs > maxPairs {
		return &link.ParamError{Kind: e.Name, Param: "pairs", Value: fmt.Sprint(cfg.Pairs), Allowed: fmt.Sprintf("1…%d", maxPairs)}
	}
	why := ""
	switch {
	case cfg.switched() && e.OneHost:
		why = "it joins containers of one host only"
	case cfg.switched() && e.Name == "macvlan-passthru" && cfg.Pairs > 1,
		!cfg.switched() && e.Isolates && !(e.Name == "macvlan-vepa" && cfg.Hairpin):
		why = e.Why
	case e.Name == "nsnet":
		why = nsnetRulesOut(cfg)
	}
	if why != "" {
		return &NotApplicable{Why: why}
	}
	return nil
}

// NodeCount returns how many network namespaces the network holds open.
func (nw *Network) NodeCount() int { return len(nw.nodes) }

// Programs returns the process ids of the network's helper programs, without their
// children.
func (nw *Network) Programs() []int {
	var pids []int
	for _, p := range nw.programs {
		pids = append(pids, p.PID())
	}
	return pids
}

// Play applies the scripted link events of a measurement that begins at from and lasts
// whole; most networks have none. It returns after the last event, or when ctx ends,
// and leaves the links in the state they have then.
func (nw *Network) Play(ctx context.Context, from time.Time, whole time.Duration) error {
	if nw.play == nil {
		return nil
	}
	return nw.play(ctx, from, whole)
}

// Close ends the helper programs and releases the namespaces.
func (nw *Network) Close() error {
	errs := []error{nw.stopPrograms()}
	for _, n := range nw.nodes {
		errs = append(errs, n.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(nw.dir))...)
}

// containEnds moves the ends of all pairs into containers, each with the network of
// the node on which it would run natively.
func (nw *Network) containEnds() error {
	if nw.cfg.ContainerRuntime == nil || nw.nativeEnds {
		return nil
	}
	for i := range nw.Pairs {
		for _, end := range []*lab.Runner{&nw.Pairs[i].Client, &nw.Pairs[i].Server} {
			switch n := (*end).(type) {
			case *lab.Node:
				*end = nw.cfg.ContainerRuntime.On(n, container.Options{})
			case lab.Host:
				return &NotApplicable{Why: "its ends are the host's own programs, in no container"}
			default:
				return &NotApplicable{Why: "its ends run in containers of its own"}
			}
		}
	}
	return nil
}

// start runs a helper program until Close. Its output goes to the output file.
func (nw *Network) start(on lab.Runner, c lab.Command) error {
	_, err := nw.startProc(on, c)
	return err
}

// startProc is start for a caller that watches the program.
func (nw *Network) startProc(on lab.Runner, c lab.Command) (lab.Proc, error) {
	output, err := os.OpenFile(nw.outputFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("make a file for a program's output: %w", err)
	}
	defer output.Close()
	c.Stderr = output
	if c.Stdout == nil {
		c.Stdout = output
	}
	p, err := on.Start(c)
	if err == nil {
		nw.programs = append(nw.programs, p)
	}
	return p, err
}

func (nw *Network) outputFile() string { return nw.dir + "/output" }

// withOutput adds the helper programs' output to err.
func (nw *Network) withOutput(err error) error {
	output, readErr := os.ReadFile(nw.outputFile())
	if readErr != nil || len(output) == 0 {
		return err
	}
	return fmt.Errorf("%w; output of its program: %s", err, strings.Join(strings.Fields(string(output)), " "))
}

// stopPrograms ends the helper programs and runs the cleanups.
func (nw *Network) stopPrograms() error {
	for _, p := range nw.programs {
		p.Kill()
		p.Wait() // the error of a killed program means nothing
	}
	var errs []error
	for _, cleanup := range slices.Backward(nw.cleanups) {
		errs = append(errs, cleanup())
	}
	nw.programs, nw.cleanups = nil, nil
	return errors.Join(errs...)
}

const (
	pollEvery = time.Millisecond // also the resolution of a timed start
	pollFor   = 10 * time.Second // a program that takes longer to start is broken
)

// poll calls ready until it returns nil. It gives up after pollFor, with the last
// error of ready.
func poll(ctx context.Context, ready func() error) error {
	ctx, cancel := context.WithTimeout(ctx, pollFor)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("gave up after %s: %w", pollFor, err)
		case <-tick.C:
		}
	}
}
