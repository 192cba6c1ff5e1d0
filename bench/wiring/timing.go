package wiring

import (
	"context"
	"fmt"
	"time"

	"cleat/lab"
	"cleat/link"
)

// Time completes the measurement that Build began, and removes the containers' links. The
// network can only be closed afterwards. It needs one pair.
//
// build runs from the first link to the first connection. Where no traffic passes between
// the containers, it ends with the last step of building. remove is the time to remove the
// containers' links and end the helper programs. Hosts and empty namespaces don't count:
// they exist before a container gets its network.
func (nw *Network) Time(ctx context.Context) (build, remove time.Duration, err error) {
	build = nw.buildTime
	began := time.Now()
	if !nw.cfg.AllowIsolated || !nw.isolated {
		if err := connectPair(ctx, nw.Pairs[0]); err != nil {
			return build, 0, err
		}
		build += time.Since(began)
	}
	began = time.Now()
	err = nw.removeLinks()
	return build, time.Since(began), err
}

// connectPair waits until the client of a pair can connect to its server.
func connectPair(ctx context.Context, p Pair) error {
	server, ok := p.Server.(*lab.Node)
	if p.ClientNode == nil || !ok {
		return nil
	}
	l, err := listenIn(ctx, server.NS, p.Listen)
	if err != nil {
		return fmt.Errorf("listen at %s: %w", p.Listen, err)
	}
	defer l.Close()
	if err := poll(ctx, func() error { return dialIn(ctx, p.ClientNode.NS, p.Dial, time.Second) }); err != nil {
		return fmt.Errorf("connect to %s: %w", p.Dial, err)
	}
	return nil
}

// removeLinks removes the containers' links and ends the helper programs.
func (nw *Network) removeLinks() error {
	for _, port := range nw.ovsPorts {
		if err := port.Close(); err != nil {
			return err
		}
	}
	if err := nw.stopPrograms(); err != nil {
		return err
	}
	for _, n := range nw.containers {
		l, err := link.Find(n.NS, inside)
		if err != nil {
			continue // removed with its peer or its program
		}
		if err := l.Close(); err != nil {
			return err
		}
	}
	return nil
}
