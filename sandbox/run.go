package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// Run lets the command begin and moves bytes until ctx ends, the command or the
// namespace is gone (all: nil), or something fails: the command could not be
// executed (a *SetupError), or the data path. It may be called once and owns all
// goroutines it starts. What was opened is closed when it returns, and the
// device with it.
func (n *Network) Run(ctx context.Context) error {
	n.mu.Lock()
	if err := n.prepare(ctx); err != nil {
		n.mu.Unlock()
		return err
	}
	n.state = stateRunning
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		n.close()
		n.mu.Unlock()
	}()
	g := newGroup(ctx)
	n.start(g)
	return g.wait()
}

// start starts all that runs.
func (n *Network) start(g *group) {
	g.run(n.opened.stack.Run)
	if n.opened.supervisor != nil {
		g.run(n.supervise)
	}
	if n.cfg.RuntimeListener != nil {
		g.run(n.acceptPrograms)
	}
	if n.resolver != nil {
		g.run(n.resolver.Run)
	}
	g.run(func(ctx context.Context) error { return n.rules.Run(ctx, n.lookup()) })
	g.run(func(ctx context.Context) error {
		if n.cmd != nil {
			if err := n.letBegin(ctx); err != nil {
				return err
			}
		}
		return n.watch.wait(ctx)
	})
	for _, r := range n.opened.outward {
		g.run(r.run)
	}
	for _, a := range n.automatic(g) {
		g.run(a.run)
	}
}

// primeTimeout bounds how long the command waits for names in rules to be looked
// up; a resolver that answers at all does so at its first or second try.
const primeTimeout = 5 * time.Second

// letBegin tells the inside that the network is there, and listens until the
// command runs in its place, or could not.
func (n *Network) letBegin(ctx context.Context) error {
	priming, cancel := context.WithTimeout(ctx, primeTimeout)
	if err := n.rules.Prime(priming, n.lookup()); err != nil && ctx.Err() == nil {
		n.cfg.Log.Warn("look up names of rules", "error", err)
	}
	cancel()
	if err := n.channel.goAhead(); err != nil {
		return &SetupError{Step: "let the command begin", Err: err}
	}
	_, fds, err := n.channel.receive(ctx)
	switch {
	case err == nil:
		closeAll(fds)
		return errors.New("let the command begin: unexpected message from inside")
	case errors.Is(err, io.EOF):
		return nil
	}
	return err
}

// group runs goroutines until the first of them ends, or the context; then all
// have to. The first error counts.
type group struct {
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	err    error
}

func newGroup(ctx context.Context) *group {
	g := &group{}
	g.ctx, g.cancel = context.WithCancel(ctx)
	return g
}

func (g *group) run(f func(context.Context) error) {
	g.wg.Go(func() {
		err := f(g.ctx)
		g.mu.Lock()
		if g.err == nil && err != nil && (g.ctx.Err() == nil || !errors.Is(err, g.ctx.Err())) {
			g.err = fmt.Errorf("run network: %w", err)
		}
		g.mu.Unlock()
		g.cancel()
	})
}

func (g *group) wait() error {
	g.wg.Wait()
	g.cancel()
	return g.err
}
