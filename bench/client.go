package bench

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"cleat/bench/experiment"
	"cleat/bench/wiring"
	"cleat/lab"
	"cleat/traffic"
)

// client is one `cleat traffic` command line that prints a Result.
type client struct {
	pair    wiring.Pair
	args    []string // after "traffic"
	cpus    []int
	timeout time.Duration
	// ready is called when the client has connected, and returns when to begin. If
	// nil, the client begins by itself.
	ready func(context.Context) (time.Time, error)
}

// run runs the command to its end and returns its result.
func (c client) run(ctx context.Context) (traffic.Result, error) {
	pipes, err := newPipes()
	if err != nil {
		return traffic.Result{}, err
	}
	defer pipes.close()
	args := append([]string{lab.Self, "traffic"}, c.args...)
	proc, err := c.pair.Client.Start(lab.Command{Args: args, CPU: c.cpus,
		Stdin: pipes.in.r, Stdout: pipes.out.w, Stderr: pipes.err.w})
	pipes.closeChild()
	if err != nil {
		return traffic.Result{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("no result after %s", c.timeout))
	defer cancel()
	defer context.AfterFunc(ctx, proc.Kill)()

	var stderr []byte
	var reading sync.WaitGroup
	reading.Go(func() { stderr, _ = io.ReadAll(pipes.err.r) })
	res, talkErr := c.talk(ctx, pipes)
	if talkErr != nil {
		proc.Kill()
	}
	reading.Wait()
	waitErr := proc.Wait()
	switch {
	case ctx.Err() != nil:
		return res, context.Cause(ctx)
	case len(stderr) > 0 && (waitErr != nil || talkErr != nil):
		return res, errors.New(errorOf(stderr))
	case talkErr != nil:
		return res, talkErr
	}
	return res, waitErr
}

// talk sends the client the time to begin and reads its result.
func (c client) talk(ctx context.Context, p *pipes) (traffic.Result, error) {
	var res traffic.Result
	out := bufio.NewReader(p.out.r)
	if c.ready != nil {
		if _, err := out.ReadString('\n'); err != nil {
			return res, fmt.Errorf("wait for a client to connect: %w", err)
		}
		at, err := c.ready(ctx)
		if err != nil {
			return res, err
		}
		if _, err := fmt.Fprintln(p.in.w, startLine(c.pair.Client, at)); err != nil {
			return res, fmt.Errorf("send a client the time to begin: %w", err)
		}
	}
	if err := json.NewDecoder(out).Decode(&res); err != nil {
		return res, fmt.Errorf("read a result: %w", err)
	}
	return res, nil
}

// pipe is both ends of a pipe.
type pipe struct{ r, w *os.File }

// pipes are the standard streams of a child process.
type pipes struct{ in, out, err pipe }

func newPipes() (*pipes, error) {
	var p pipes
	for _, one := range []*pipe{&p.in, &p.out, &p.err} {
		var err error
		if one.r, one.w, err = os.Pipe(); err != nil {
			p.close()
			return nil, fmt.Errorf("make a pipe: %w", err)
		}
	}
	return &p, nil
}

// closeChild closes the ends that the child has inherited.
func (p *pipes) closeChild() {
	p.in.r.Close()
	p.out.w.Close()
	p.err.w.Close()
}

func (p *pipes) close() {
	for _, f := range []*os.File{p.in.r, p.in.w, p.out.r, p.out.w, p.err.r, p.err.w} {
		f.Close() // harmless for nil and closed files
	}
}

// errorOf returns the error that a failed program printed, or all its output.
func errorOf(stderr []byte) string {
	for line := range strings.Lines(string(stderr)) {
		if text, ok := strings.CutPrefix(line, "cleat: error: "); ok {
			return strings.TrimSpace(text)
		}
	}
	return strings.TrimSpace(string(stderr))
}

// arguments returns the command line for one pair's part of a job.
func arguments(job experiment.Job, p wiring.Pair, s *server) []string {
	c, w := job.Cell, job.Work
	kind := w.Kind
	switch kind {
	case experiment.Packets:
		kind = experiment.UDP
	case experiment.Loaded:
		kind = experiment.TCP
		if job.Datagrams() {
			kind = experiment.UDP
		}
	}
	args := []string{kind, p.Dial.String(), "--json",
		"--duration", w.Duration.String(),
		"--streams", strconv.Itoa(max(c.Streams, 1)),
		"--start-on-stdin",
		"--engine", c.Engine,
	}
	args = append(args, s.controlFlag()...)
	add := func(name, value string) { args = append(args, name, value) }
	if c.MessageBytes > 0 {
		add("--message", strconv.Itoa(c.MessageBytes))
	}
	if name := cmp.Or(p.Congestion, c.Congestion); name != "" {
		add("--congestion", name)
	}
	if c.Transport == "mptcp" {
		args = append(args, "--mptcp")
	}
	if c.Factors["gso"] == "on" {
		args = append(args, "--gso")
	}
	if job.Rate > 0 {
		add("--rate", strconv.FormatFloat(job.Rate, 'f', -1, 64))
	}
	if _, search := job.Offered(); overLinks(c) && !search && (kind == experiment.TCP || kind == experiment.UDP) {
		add("--early", steadyFrom(job).String())
	}
	if kind == experiment.UDP {
		_, search := job.Offered()
		switch rate := offeredRate(job); {
		case search:
			args = append(args, "--search")
		case rate > 0:
			add("--rate", strconv.FormatFloat(rate, 'f', -1, 64))
		}
	}
	return args
}
