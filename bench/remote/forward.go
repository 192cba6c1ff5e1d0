package remote

import (
	"context"
	"fmt"
	"os"
	"sync"

	"cleat/lab"
)

// JoinSockets makes a Unix socket where server runs reachable where client runs: whoever
// connects to near there talks to the program that listens at far. It goes over both ssh
// connections, so that it shares nothing with a path that is measured. Both runners must be
// those of a Node. stop ends it and waits for that.
func JoinSockets(ctx context.Context, client, server lab.Runner) (near, far string, stop func(), err error) {
	from, to := client.(runner).node, server.(runner).node
	near, far = from.newSocket(), to.newSocket()
	if _, err := from.request(ctx, from.number(), OpSocket, Socket{near}); err != nil {
		return "", "", nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			if err := forwardOne(ctx, &running, from, near, to, far); err != nil {
				return // the machines are gone, or stop was called
			}
		}
	})
	return near, far, func() { cancel(); running.Wait() }, nil
}

// newSocket returns a path for a socket of the machine.
func (n *Node) newSocket() string { return fmt.Sprintf("%s/%d.sock", n.Scratch, n.number()) }

// forwardOne waits for one connection and joins it with one to the target.
func forwardOne(ctx context.Context, running *sync.WaitGroup, from *Node, path string, to *Node, target string) error {
	var files [4]*os.File // the pipes there and back
	defer func() { closeFiles(files[:]...) }()
	for i := 0; i < len(files); i += 2 {
		var err error
		if files[i], files[i+1], err = os.Pipe(); err != nil {
			return fmt.Errorf("make a pipe: %w", err)
		}
	}
	near, err := from.launch(ctx, OpAccept, Socket{path}, files[2], files[1], nil)
	if err != nil {
		return err
	}
	far, err := to.launch(ctx, OpConnect, Socket{target}, files[0], files[3], nil)
	if err != nil {
		near.Kill() // the client sees the end
		return ctx.Err()
	}
	running.Go(func() {
		defer context.AfterFunc(ctx, func() { near.Kill(); far.Kill() })()
		near.Wait()
		far.Wait()
	})
	return nil
}
