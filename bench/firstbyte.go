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

// launchTimeout bounds the start of a network and a command in it: a SYN is sent
// again three times.
const launchTimeout = 10 * time.Second

// firstByte takes one sample of the time from starting a network's program until
// the first byte of a response arrives in a command inside.
func (r *run) firstByte(ctx context.Context, b *testbed, _ experiment.Job, s *cell.Sample) error {
	took, err := b.launch(ctx)
	if err != nil {
		return err
	}
	s.Values = map[cell.Metric]float64{cell.FirstByte: float64(took)}
	return nil
}

// launch starts the testbed's network once more, with a command that prints when
// the first byte arrived.
func (b *testbed) launch(ctx context.Context) (time.Duration, error) {
	if _, err := b.serve(ctx, 0, engineCleat, nil); err != nil {
		return 0, err
	}
	self, err := os.Executable() // /proc/self/exe would be the program that starts the command
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
	began := traffic.MonotonicTime()
	proc, end, err := b.Launch(ctx, lab.Command{Args: []string{self, "traffic", "hello", b.Pairs[0].Dial.String()},
		Stdin: p.in.r, Stdout: p.out.w, Stderr: p.err.w})
	p.closeChild()
	if err != nil {
		return 0, err
	}
	defer context.AfterFunc(ctx, proc.Kill)()
	out, stderr := p.read()
	err = errors.Join(proc.Wait(), end())
	switch {
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case err != nil && len(stderr) > 0:
		return 0, errors.New(errorOf(stderr))
	case err != nil:
		return 0, err
	}
	at, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the time of the first byte: %w", err)
	}
	return time.Duration(at) - began, nil
}

func (p *pipes) read() (out, stderr []byte) {
	var reading sync.WaitGroup
	reading.Go(func() { stderr, _ = io.ReadAll(p.err.r) })
	out, _ = io.ReadAll(p.out.r)
	reading.Wait()
	return out, stderr
}
