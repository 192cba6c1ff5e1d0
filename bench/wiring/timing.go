package wiring

import (
	"context"
	"fmt"
	"net"
	"time"

	"cleat/lab"
	"cleat/link"
)

// Timing is how long a network took to make and to remove, without the hosts
// and the empty namespaces, which are there before a container gets its
// network.
type Timing struct {
	// Make runs from the first link to the first connection that passes; for
	// networks that isolate neighbours, to the last step of the wiring.
	Make time.Duration
	// Remove is the removal of the containers' links and the end of the helper
	// programs.
	Remove time.Duration
}

// Time finishes the measurement that Wire began, and removes the containers'
// links: the wiring is of no use afterwards. It needs one pair.
func (nw *Network) Time(ctx context.Context) (Timing, error) {
	t := Timing{Make: nw.made}
	if !nw.cfg.Isolated || !nw.isolates {
		began := time.Now()
		if err := nw.connect(ctx); err != nil {
			return t, err
		}
		t.Make += time.Since(began)
	}
	began := time.Now()
	err := nw.unlink()
	t.Remove = time.Since(began)
	return t, err
}

// connect makes one TCP connection from the client to the server.
func (nw *Network) connect(ctx context.Context) error {
	p := nw.Pairs[0]
	client := p.ClientNode
	server, ok := p.Server.(*lab.Node)
	if client == nil || !ok {
		return nil
	}
	var listener net.Listener
	if err := server.NS.Do(func() (err error) {
		listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", p.Listen.String())
		return err
	}); err != nil {
		return fmt.Errorf("listen at %s: %w", p.Listen, err)
	}
	defer listener.Close()
	return poll(ctx, func() error {
		return client.NS.Do(func() error {
			// One thread does the whole dial, inside the namespace.
			c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", p.Dial.String())
			if err != nil {
				return fmt.Errorf("reach %s: %w", p.Dial, err)
			}
			return c.Close()
		})
	})
}

// unlink removes the containers' links and ends the helper programs.
func (nw *Network) unlink() error {
	for _, port := range nw.ovsPorts {
		if err := port.Close(); err != nil {
			return err
		}
	}
	if err := nw.stopPrograms(); err != nil {
		return err
	}
	for _, n := range nw.containerNodes {
		l, err := link.Find(n.NS, inside)
		if err != nil {
			continue // it went with its peer, or with its program
		}
		if err := l.Close(); err != nil {
			return err
		}
	}
	return nil
}
