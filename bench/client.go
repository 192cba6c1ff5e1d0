package bench

import (
	"bytes"
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
}

// run runs the command to its end and reads what it printed.
func (c client) run(ctx context.Context) (traffic.Result, error) {
	var res traffic.Result
	out, outW, err := os.Pipe()
	if err != nil {
		return res, fmt.Errorf("make a pipe: %w", err)
	}
	defer out.Close()
	errs, errW, err := os.Pipe()
	if err != nil {
		outW.Close()
		return res, fmt.Errorf("make a pipe: %w", err)
	}
	defer errs.Close()
	args := append([]string{lab.Self, "traffic"}, c.args...)
	proc, err := c.pair.Client.Start(lab.Command{Args: args, CPU: c.cpus, Stdout: outW, Stderr: errW})
	outW.Close()
	errW.Close()
	if err != nil {
		return res, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("no result after %s", c.timeout))
	defer cancel()
	defer context.AfterFunc(ctx, proc.Kill)()

	var complaint []byte
	var reading sync.WaitGroup
	reading.Go(func() { complaint, _ = io.ReadAll(errs) })
	printed, readErr := io.ReadAll(out)
	reading.Wait()
	waitErr := proc.Wait()
	switch {
	case ctx.Err() != nil:
		return res, context.Cause(ctx)
	case waitErr != nil:
		return res, errors.New(lastLine(complaint, waitErr.Error()))
	case readErr != nil:
		return res, fmt.Errorf("read a result: %w", readErr)
	}
	if err := json.Unmarshal(printed, &res); err != nil {
		return res, fmt.Errorf("parse a result: %w", err)
	}
	return res, nil
}

// lastLine is what a failed program said last, or otherwise.
func lastLine(said []byte, otherwise string) string {
	for _, line := range bytes.Split(said, []byte("\n")) {
		if text, ok := strings.CutPrefix(string(line), "cleat: error: "); ok {
			return text
		}
	}
	if text := strings.TrimSpace(string(said)); text != "" {
		return text
	}
	return otherwise
}

// arguments are the command line for one pair's part of a job.
func arguments(job experiment.Job, p wiring.Pair, s *server, startAt time.Time) []string {
	c, w := job.Cell, job.Work
	kind := w.Kind
	if kind == experiment.Packets {
		kind = experiment.UDP
	}
	args := []string{kind, p.Dial.String(), "--json",
		"--duration", w.Duration.String(),
		"--streams", strconv.Itoa(max(c.Streams, 1)),
		"--start-at", strconv.FormatInt(startAt.UnixNano(), 10),
		"--engine", c.Engine,
	}
	add := func(name, value string) { args = append(args, name, value) }
	if s.control != "" {
		add("--control", "unix:"+s.control)
	}
	if c.MessageBytes > 0 {
		add("--message", strconv.Itoa(c.MessageBytes))
	}
	if c.Congestion != "" {
		add("--congestion", c.Congestion)
	}
	if c.Transport == "mptcp" {
		args = append(args, "--mptcp")
	}
	if c.Factors["gso"] == "on" {
		args = append(args, "--gso")
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
