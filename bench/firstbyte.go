package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"cleat/bench/cell"
	"cleat/bench/experiment"
	"cleat/lab"
	"cleat/traffic"
)

// launchTimeout bounds how long a network and a command in it may take to
// start: three times a SYN is sent again.
const launchTimeout = 10 * time.Second

// firstByte takes one sample of how long it takes from starting a network's
// program until the first byte of a response arrives in a command inside. What
// goes wrong is in the sample.
func (r *run) firstByte(ctx context.Context, b *testbed, job experiment.Job) cell.Sample {
	s := cell.Sample{Cell: job.Cell, Work: job.Work.Kind, Started: time.Now()}
	took, err := b.launch(ctx)
	if err != nil {
		s.Error = err.Error()
		return s
	}
	s.Values = map[cell.Metric]float64{cell.FirstByte: float64(took)}
	return s
}

// launch starts the bed's network once more, with a command that says when the
// first byte came.
func (b *testbed) launch(ctx context.Context) (time.Duration, error) {
	if _, err := b.serve(ctx, 0, engineCleat, nil); err != nil {
		return 0, err
	}
	self, err := os.Executable() // what /proc/self/exe is depends on who starts it
	if err != nil {
		return 0, fmt.Errorf("find this program: %w", err)
	}
	p, err := newPipes()
	if err != nil {
		return 0, err
	}
	defer p.close()
	ctx, cancel := context.WithTimeoutCause(ctx, launchTimeout, fmt.Errorf("no first byte after %s", launchTimeout))
	defer cancel()
	began, err := traffic.MonotonicTime()
	if err != nil {
		return 0, err
	}
	l, err := b.Launch(ctx, lab.Command{Args: []string{self, "traffic", "hello", b.Pairs[0].Dial.String()},
		Stdin: p.in.r, Stdout: p.out.w, Stderr: p.err.w})
	p.handedOver()
	if err != nil {
		return 0, err
	}
	defer context.AfterFunc(ctx, l.Kill)()
	said, complaint := p.read()
	err = errors.Join(l.Wait(), l.Close())
	switch {
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case err != nil && len(complaint) > 0:
		return 0, errors.New(lastLine(complaint))
	case err != nil:
		return 0, err
	}
	at, err := strconv.ParseInt(strings.TrimSpace(string(said)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read when the first byte came: %w", err)
	}
	return time.Duration(at) - began, nil
}

// read reads a program's output and complaints to their ends.
func (p *pipes) read() (out, complaint []byte) {
	var reading sync.WaitGroup
	reading.Go(func() { complaint, _ = io.ReadAll(p.err.r) })
	out, _ = io.ReadAll(p.out.r)
	reading.Wait()
	return out, complaint
}
