package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"
)

// Run lets the command start and moves packets. It returns nil when ctx, the command or the
// namespace has ended. It returns an error if the command can't be executed (a *SetupError) or
// the data path fails. It may be called once. It owns all goroutines that it starts, and
// closes what was opened, the device included, when it returns.
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
	g := &group{}
	g.ctx, g.cancel = context.WithCancel(ctx)
	defer g.cancel()
	n.start(g)
	return g.goroutines.Wait()
}

// start starts everything that runs until the network ends.
func (n *Network) start(g *group) {
	g.run(n.res.stack.Run)
	if n.res.supervisor != nil {
		g.run(n.supervise)
	}
	if n.cfg.RuntimeListener != nil {
		g.run(n.acceptRuntimes)
	}
	if n.resolver != nil {
		g.run(n.resolver.Run)
	}
	g.run(func(ctx context.Context) error { return n.rules.Run(ctx, n.lookup()) })
	g.run(func(ctx context.Context) error {
		if n.cmd != nil {
			if err := n.startCommand(ctx); err != nil {
				return err
			}
		}
		return n.watch.wait(ctx)
	})
	for _, r := range n.res.relays {
		g.run(r.run)
	}
	if diag := n.res.guestDiag; diag != nil {
		f := autoForwarder{n: n, open: map[autoKey]Forward{}, warned: map[autoKey]bool{}}
		g.run(func(ctx context.Context) error { return n.poll(ctx, diag, n.cfg.AutoForward, f.apply) })
	}
	if diag := n.res.hostDiag; diag != nil {
		r := autoReverser{n: n, g: g, tried: map[ReverseForward]bool{}}
		g.run(func(ctx context.Context) error { return n.poll(ctx, diag, n.cfg.AutoReverseForward, r.apply) })
	}
}

// primeTimeout bounds how long the command waits until names in rules have been looked up. A
// resolver that answers at all answers the first or second query.
const primeTimeout = 5 * time.Second

// startCommand lets the setup process execute the command, and waits until the command runs or
// could not be executed.
func (n *Network) startCommand(ctx context.Context) error {
	priming, cancel := context.WithTimeout(ctx, primeTimeout)
	if err := n.rules.Prime(priming, n.lookup()); err != nil && ctx.Err() == nil {
		n.cfg.Log.Warn("look up names of rules", "error", err)
	}
	cancel()
	if err := n.channel.write([]byte(goMessage)); err != nil {
		return &SetupError{Step: "start the command", Err: err}
	}
	_, fds, err := n.channel.receive(ctx)
	switch {
	case err == nil:
		closeAll(fds)
		return errors.New("start the command: unexpected message from the setup process")
	case errors.Is(err, io.EOF):
		return nil
	}
	return err
}

// group runs goroutines until one of them or the context ends, and then ends all. The first
// error counts.
type group struct {
	goroutines errgroup.Group
	ctx        context.Context
	cancel     context.CancelFunc
}

func (g *group) run(f func(context.Context) error) {
	g.goroutines.Go(func() error {
		err := f(g.ctx)
		ended := g.ctx.Err()
		g.cancel()
		if err == nil || ended != nil && errors.Is(err, ended) {
			return nil
		}
		return fmt.Errorf("run network: %w", err)
	})
}
