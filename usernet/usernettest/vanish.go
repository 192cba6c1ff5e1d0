package usernettest

import (
	"fmt"
	"net/netip"
	"os"

	"cleat/lab"

	"golang.org/x/sys/unix"
)

// vanishCases cut one side off, for a while or for good.
func vanishCases() []Case {
	cases := families(func(f Family) Case {
		return Case{Name: "vanish/outside-for-good", Alone: true, Needs: []Ability{Sockets}, Check: func(x *T, s *Env) {
			in, out := x.pair(s, Out, f)
			x.Must(exchange(in, out))
			before, err := descriptors(s.Proc.PID())
			x.Must(err)
			// The host gives up soon, and the guest must get an error.
			x.Must(s.Host.Sysctl("net/ipv4/tcp_retries2", "1"))
			x.Must(s.cut(s.Outside, HostAddr(f)))
			in.Write(make([]byte, 10_000))
			n, err := in.Read(make([]byte, 1))
			if err == nil || os.IsTimeout(err) && errno(err) == "no answer" {
				x.Fatalf("read %d bytes, error %v from a peer that was cut off", n, err)
			}
			if e := errno(err); e == "EOF" {
				x.Fatalf("a peer that was cut off appears to have closed")
			}
			x.Notef("inside: %s", errno(err))
			in.Close()
			if !s.dataPath.has(Owner) {
				return
			}
			x.Await(func() error {
				now, err := descriptors(s.Proc.PID())
				if err == nil && now >= before {
					err = fmt.Errorf("the helper has %d descriptors, %d with the connection", now, before)
				}
				return err
			})
		}}
	})
	cases = append(cases, families(func(f Family) Case {
		return Case{Name: "vanish/uplink-for-a-while", Alone: true, Check: func(x *T, s *Env) {
			in, out := x.pair(s, Out, f)
			x.Must(exchange(in, out))
			stopWhile(x, in, out, 32<<20, func() {
				x.Must(s.cut(s.Outside, HostAddr(f)))
			}, func() { x.Must(s.restore(s.Outside, HostAddr(f))) })
		}}
	})...)
	return append(cases, families(func(f Family) Case {
		return Case{Name: "vanish/inside-for-a-while", Alone: true, Check: func(x *T, s *Env) {
			in, out := x.pair(s, Out, f)
			x.Must(exchange(in, out))
			st := startStream(out, 32<<20, 9)
			// The guest's acknowledgements get lost: nothing is sent to the outside.
			x.Must(s.cut(s.Container, remoteAddr(f, remoteServer)))
			x.awaitStalled(&st.progress)
			x.Must(s.restore(s.Container, remoteAddr(f, remoteServer)))
			x.Must(st.check(in))
		}}
	})...)
}

// cut drops the node's packets to an address.
func (s *Env) cut(n *lab.Node, to netip.Addr) error {
	return addRoute(n, hostPrefix(to), netip.Addr{}, unix.RTN_BLACKHOLE)
}

func (s *Env) restore(n *lab.Node, to netip.Addr) error {
	return removeRoute(n, hostPrefix(to), netip.Addr{}, unix.RTN_BLACKHOLE)
}
