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
	// ready is called when the client has connected, and returns when it is to
	// begin; nil: it begins by itself.
	ready func(context.Context) (time.Time, error)
}

// run runs the command to its end and reads what it printed.
func (c client) run(ctx context.Context) (traffic.Result, error) {
	pipes, err := newPipes()
	if err != nil {
		return traffic.Result{}, err
	}
	defer pipes.close()
	args := append([]string{lab.Self, "traffic"}, c.args...)
	proc, err := c.pair.Client.Start(lab.Command{Args: args, CPU: c.cpus,
		Stdin: pipes.in.r, Stdout: pipes.out.w, Stderr: pipes.err.w})
	pipes.handedOver()
	if err != nil {
		return traffic.Result{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("no result after %s", c.timeout))
	defer cancel()
	defer context.AfterFunc(ctx, proc.Kill)()

	var complaint []byte
	var reading sync.WaitGroup
	reading.Go(func() { complaint, _ = io.ReadAll(pipes.err.r) })
	res, talkErr := c.talk(ctx, pipes)
	if talkErr != nil {
		proc.Kill()
	}
	reading.Wait()
	waitErr := proc.Wait()
	switch {
	case ctx.Err() != nil:
		return res, context.Cause(ctx)
	case len(complaint) > 0 && (waitErr != nil || talkErr != nil):
		return res, errors.New(lastLine(complaint))
	case talkErr != nil:
		return res, talkErr
	}
	return res, waitErr
}

// talk tells the client when to begin and reads its result.
func (c client) talk(ctx context.Context, p *pipes) (traffic.Result, error) {
	var res traffic.Result
	said := bufio.NewReader(p.out.r)
	if c.ready != nil {
		if _, err := said.ReadString('\n'); err != nil {
			return res, fmt.Errorf("wait for a client to connect: %w", err)
		}
		at, err := c.ready(ctx)
		if err != nil {
			return res, err
		}
		if _, err := fmt.Fprintln(p.in.w, at.UnixNano()); err != nil {
			return res, fmt.Errorf("tell a client when to begin: %w", err)
		}
	}
	if err := json.NewDecoder(said).Decode(&res); err != nil {
		return res, fmt.Errorf("read a result: %w", err)
	}
	return res, nil
}

// pipe is both ends of a pipe.
type pipe struct{ r, w *os.File }

// pipes are a client's standard streams.
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

// handedOver closes the ends that the client has now.
func (p *pipes) handedOver() {
	p.in.r.Close()
	p.out.w.Close()
	p.err.w.Close()
}

func (p *pipes) close() {
	for _, f := range []*os.File{p.in.r, p.in.w, p.out.r, p.out.w, p.err.r, p.err.w} {
		f.Close() // of those that are open; nil and closed ones are harmless
	}
}

// lastLine is what a failed program said: its error, or all of it.
func lastLine(said []byte) string {
	for line := range strings.Lines(string(said)) {
		if text, ok := strings.CutPrefix(line, "cleat: error: "); ok {
			return strings.TrimSpace(text)
		}
	}
	return strings.TrimSpace(string(said))
}

// arguments are the command line for one pair's part of a job.
func arguments(job experiment.Job, p wiring.Pair, s *server) []string {
	c, w := job.Cell, job.Work
	kind := w.Kind
	switch kind {
	case experiment.Packets:
		kind = experiment.UDP
	case experiment.Loaded:
		kind = experiment.TCP
	}
	args := []string{kind, p.Dial.String(), "--json",
		"--duration", w.Duration.String(),
		"--streams", strconv.Itoa(max(c.Streams, 1)),
		"--start-on-stdin",
		"--engine", c.Engine,
	}
	add := func(name, value string) { args = append(args, name, value) }
	if s.control != "" {
		add("--control", "unix:"+s.control)
	}
	if c.MessageBytes > 0 {
		add("--message", strconv.Itoa(c.MessageBytes))
	}
	if use := cmp.Or(p.Congestion, c.Congestion); use != "" {
		add("--congestion", use)
	}
	if c.Transport == "mptcp" {
		args = append(args, "--mptcp")
	}
	if c.Factors["gso"] == "on" {
		args = append(args, "--gso")
	}
	if rate := c.Factors["rate"]; rate != "" {
		add("--rate", rate)
	}
	if _, search := job.Offered(); overLinks(c) && !search && (kind == experiment.TCP || kind == experiment.UDP) {
		add("--early", steadyFrom(job).String())
	}
	if kind == experiment.UDP {
		switch rate, search := job.Offered(); {
		case search:
			args = append(args, "--search")
		case rate > 0:
			add("--rate", strconv.FormatFloat(rate, 'f', -1, 64))
		}
	}
	return args
}
