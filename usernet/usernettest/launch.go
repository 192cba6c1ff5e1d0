package usernettest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"cleat/lab"
)

// Launch starts a helper on the host. Its output goes to a log.
func (s *Topology) Launch(args []string, extra ...*os.File) (*Instance, error) {
	log, err := os.Create(filepath.Join(s.Dir, "helper.log"))
	if err != nil {
		return nil, err
	}
	p, err := s.Host.Start(lab.Command{Args: args, Stdout: log, Stderr: log, Extra: extra})
	if err != nil {
		log.Close()
		return nil, err
	}
	return &Instance{Proc: p, Log: log, Stopped: func() { log.Close() }}, nil
}

// awaitConfigured waits until the helper has configured the container. It fails if the
// helper ends.
func (s *Topology) awaitConfigured(ctx context.Context, i *Instance, families ...Family) error {
	ended := false
	err := s.awaitAddress(ctx, i.Device, families, func() bool {
		st := procState(i.Proc.PID())
		ended = st == 'Z' || st == 0
		return ended
	})
	if ended {
		err = errors.New("the helper has ended")
	}
	if err != nil {
		err = s.abandon(i, err)
	}
	return err
}

// AwaitPort waits until the helper listens on the last port of a forward. It fails if the
// helper ends.
func (s *Topology) AwaitPort(ctx context.Context, i *Instance, fw Forward) error {
	want := fmt.Appendf(nil, ":%04X ", int(fw.Port)+fw.Count-1)
	err := await(ctx, func() error {
		if st := procState(i.Proc.PID()); st == 'Z' || st == 0 {
			return nil
		}
		// /proc/PID/net shows the process's network namespace.
		for _, table := range []string{fw.Proto, fw.Proto + "6"} {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", i.Proc.PID(), table))
			if err == nil && bytes.Contains(b, want) {
				return nil
			}
		}
		return fmt.Errorf("the helper does not listen on port %d/%s", int(fw.Port)+fw.Count-1, fw.Proto)
	})
	if st := procState(i.Proc.PID()); st == 'Z' || st == 0 {
		err = errors.New("the helper has ended")
	}
	if err != nil {
		err = s.abandon(i, err)
	}
	return err
}

// abandon kills a helper that did not start, and adds its log to the error.
func (s *Topology) abandon(i *Instance, err error) error {
	i.Proc.Kill()
	i.Proc.Wait()
	err = fmt.Errorf("%w: %s", err, i.logTail())
	i.Stopped()
	return err
}
