package usernettest

import (
	"errors"
	"fmt"
	"io"
	"net/netip"

	"cleat/lab"
)

// forwardForms returns forwards of each form, on ports that nothing else uses.
func forwardForms() []Forward {
	loopback := netip.MustParseAddr("127.0.0.1")
	both := func(f Forward) []Forward {
		udp := f
		f.Proto, udp.Proto = "tcp", "udp"
		return []Forward{f, udp}
	}
	var all []Forward
	for _, f := range []Forward{
		{Addr: HostAddr(V4), Port: 21000, To: 22000, Count: 1}, // one address
		{Port: 21010, To: 22010, Count: 5},                     // a range, shifted
		{Addr: loopback, Port: 21020, To: 21020, Count: 1},     // loopback only
		{Port: firstPort, To: firstPort, Count: forwardCount},  // the default
	} {
		all = append(all, both(f)...)
	}
	return all
}

// forwardForm is a conversation over a forward, or one that must fail.
type forwardForm struct {
	name   string
	family Family
	from   func(*Env) *lab.Node
	dial   netip.AddrPort
	to     uint16 // the guest's port
	fails  bool
}

func outsideNode(s *Env) *lab.Node { return s.Outside }
func hostNode(s *Env) *lab.Node    { return s.Host }

// forwardCases try each form of a forward from each side of the host.
func forwardCases() []Case {
	loop4, loop6 := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")
	at := netip.AddrPortFrom
	table := []forwardForm{
		{"one-address/remote", V4, outsideNode, at(HostAddr(V4), 21000), 22000, false},
		{"one-address/not-loopback", V4, hostNode, at(loop4, 21000), 22000, true},
		{"range/first", V4, outsideNode, at(HostAddr(V4), 21010), 22010, false},
		{"range/last", V4, outsideNode, at(HostAddr(V4), 21014), 22014, false},
		{"range/beyond", V4, outsideNode, at(HostAddr(V4), 21015), 22015, true},
		{"range/last", V6, outsideNode, at(HostAddr(V6), 21014), 22014, false},
		{"loopback-alone/loopback", V4, hostNode, at(loop4, 21020), 21020, false},
		{"loopback-alone/not-remote", V4, outsideNode, at(HostAddr(V4), 21020), 21020, true},
		{"everywhere/loopback", V4, hostNode, at(loop4, firstPort), firstPort, false},
		{"everywhere/loopback", V6, hostNode, at(loop6, firstPort), firstPort, false},
		{"everywhere/own-address", V4, hostNode, at(HostAddr(V4), firstPort), firstPort, false},
		{"everywhere/own-address", V6, hostNode, at(HostAddr(V6), firstPort), firstPort, false},
	}
	var cases []Case
	for _, proto := range []string{"tcp", "udp"} {
		for _, form := range table {
			needs := []Ability{Inbound, ForwardForms}
			if form.family == V6 {
				needs = append(needs, IPv6, Inbound6)
			}
			cases = append(cases, Case{
				Name: fmt.Sprintf("forward/%s/%s/%s", proto, form.name, form.family), Needs: needs, Options: Options{Forwards: forwardForms()},
				Check: func(x *T, s *Env) { checkForm(x, s, proto, form) },
			})
		}
	}
	for _, proto := range []string{"tcp", "udp"} {
		cases = append(cases, families(func(f Family) Case {
			c := Case{Name: "forward/" + proto + "/source-address", Needs: []Ability{Inbound, KeepsSource}, Check: func(x *T, s *Env) {
				seen := clientAddrSeen(x, s, proto, f)
				if seen.Addr() != OutsideAddr(f) {
					x.Fatalf("the server inside sees the client at %s, want %s", seen, OutsideAddr(f))
				}
			}}
			if f == V6 {
				c.Needs = append(c.Needs, Inbound6)
			}
			return c
		})...)
	}
	return append(cases,
		Case{Name: "forward/nobody-listens-inside", Needs: []Ability{Inbound}, Check: noListener},
		Case{Name: "forward/auto", Needs: []Ability{Inbound, ForwardAuto}, Options: Options{Auto: true, Forwards: []Forward{}}, Alone: true, Check: autoForward},
	)
}

func checkForm(x *T, s *Env, proto string, form forwardForm) {
	err := x.viaForward(s, proto, form)
	if form.fails && err == nil {
		x.Fatalf("%s/%s from %s is forwarded, want it refused", form.dial, proto, form.from(s))
	}
	if !form.fails && err != nil {
		x.Fatalf("%s/%s from %s to port %d inside: %v", form.dial, proto, form.from(s), form.to, err)
	}
}

// viaForward talks to a server in the container over a forward.
func (x *T) viaForward(s *Env, proto string, form forwardForm) error {
	if proto == "udp" {
		server := x.udpSocket(s.Container, unspecified(form.family, form.to))
		go echoUDP(server)
		c, err := x.dial(form.from(s), "udp", form.dial)
		if err != nil {
			return err
		}
		return x.echoed(c, 100)
	}
	l := x.listen(s.Container, unspecified(form.family, form.to))
	go echoServer(l)
	c, err := x.dial(form.from(s), "tcp", form.dial)
	if err != nil {
		return err
	}
	return roundTrip(c, 10_000)
}

// clientAddrSeen returns the client's address as a server inside sees it.
func clientAddrSeen(x *T, s *Env, proto string, f Family) netip.AddrPort {
	if proto == "tcp" {
		in, _ := x.pair(s, In, f)
		return addrOf(in.RemoteAddr())
	}
	server, to := x.udpServer(s, In, f)
	c, err := x.dial(s.Outside, "udp", to)
	x.Must(err)
	_, err = c.Write([]byte("who am I?"))
	x.Must(err)
	_, from, err := server.ReadFromUDPAddrPort(make([]byte, 100))
	x.Must(err)
	return netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
}

// noListener checks that a forward to a closed port ends in an error for the client: it
// must not hang or end in order.
func noListener(x *T, s *Env) {
	c, err := x.dial(s.Outside, "tcp", s.reached(V4, s.nextForwardedPort()))
	if err == nil {
		_, err = c.Read(make([]byte, 1))
	}
	if e := errno(err); e != "ECONNREFUSED" && e != "ECONNRESET" {
		x.Fatalf("the client of a port without a listener inside gets %v", err)
	}
	if errors.Is(err, io.EOF) {
		x.Fatalf("the client of a port without a listener inside reads an orderly end")
	}
}

// autoForward checks that a port is forwarded once a program inside listens on it, and no
// longer when it stops.
func autoForward(x *T, s *Env) {
	l := x.listen(s.Container, unspecified(V4, 23456))
	go echoServer(l)
	to := s.reached(V4, 23456)
	talk := func() error {
		c, err := x.dial(s.Outside, "tcp", to)
		if err != nil {
			return err
		}
		defer c.Close()
		return roundTrip(c, 100)
	}
	x.Await(talk)
	l.Close()
	x.Await(func() error {
		if talk() == nil {
			return errors.New("the port is still forwarded after its listener has closed")
		}
		return nil
	})
}
