package usernettest

import (
	"errors"
	"fmt"
	"slices"

	"cleat/lab"
	"cleat/link"

	"golang.org/x/sys/unix"
)

// endCases check that when the helper ends, the container has no network and nothing else
// is left.
func endCases() []Case {
	var cases []Case
	for _, end := range []struct {
		name string
		sig  unix.Signal
	}{{"killed", unix.SIGKILL}, {"terminated", unix.SIGTERM}} {
		cases = append(cases, Case{Name: "end/" + end.name, Alone: true, Needs: []Ability{Helper}, Check: func(x *T, s *Env) {
			in, out := x.pair(s, Out, V4)
			x.Must(exchange(in, out))
			server, to := x.udpServer(s, Out, V4)
			go echoUDP(server)
			c, err := x.dial(s.Container, "udp", to)
			x.Must(err)
			x.Must(x.echoed(c, 10))

			pid := s.Proc.PID()
			x.Must(unix.Kill(pid, end.sig))
			x.Await(func() error {
				if st := procState(pid); st != 'Z' && st != 0 {
					return fmt.Errorf("the helper is in state %[2]c after signal %[1]d", end.sig, st)
				}
				return nil
			})
			s.stop(end.sig)
			x.checkNothingLeft(s)
			if s.dataPath.has(Sockets) && s.dataPath.has(Owner) {
				if n, err := out.Read(make([]byte, 1)); err == nil || errno(err) == "no answer" {
					x.Fatalf("the server outside reads %d bytes, error %v after the helper has ended", n, err)
				}
			}
			if _, err := x.dial(s.Container, "tcp", to); err == nil {
				x.Fatalf("connected without a helper")
			}
		}})
	}
	return cases
}

// checkNothingLeft waits until the container's device and all processes are gone.
func (x *T) checkNothingLeft(s *Env) {
	x.Await(func() error {
		return errors.Join(
			onlyLinks(s.Container, "lo"), onlyLinks(s.Host, "lo", uplink),
			noProcesses(s.Container), noProcesses(s.Host),
		)
	})
	for _, fw := range s.Options.Forwards {
		if fw.Proto != "tcp" {
			continue
		}
		if _, err := x.dial(s.Outside, "tcp", s.reached(V4, fw.Port)); err == nil {
			x.Fatalf("port %d is still forwarded", fw.Port)
		}
	}
}

func onlyLinks(n *lab.Node, want ...string) error {
	h, err := link.Handle(n.NS)
	if err != nil {
		return err
	}
	defer h.Close()
	all, err := h.LinkList()
	if err != nil {
		return err
	}
	for _, l := range all {
		if name := l.Attrs().Name; !slices.Contains(want, name) {
			return fmt.Errorf("%s still has link %q", n, name)
		}
	}
	return nil
}

func noProcesses(n *lab.Node) error {
	id, err := n.NS.ID()
	if err != nil {
		return err
	}
	if pids := processesIn(id); len(pids) > 0 {
		return fmt.Errorf("processes left on %s: %v", n, pids)
	}
	return nil
}
