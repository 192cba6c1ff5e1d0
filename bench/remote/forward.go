package remote

import (
	"context"
	"fmt"
	"os"
	"sync"
)

// Forward makes a Unix socket of one machine reachable on another: who connects to the
// path on from, talks to the one that listens at path on to. It goes over both ssh
// connections, so that it shares nothing with a path that is measured. It ends with stop,
// which waits for it.
func Forward(from *Node, path string, to *Node, target string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			if err := forwardOne(ctx, &running, from, path, to, target); err != nil {
				return // the machines are gone, or stop was called
			}
		}
	})
	return func() { cancel(); running.Wait() }
}

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
