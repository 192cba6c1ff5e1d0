package usernettest

import (
	"fmt"
	"net"
	"time"
)

// fragmentCases: datagrams longer than the MTU, inside or on the host's uplink.
// The answer is as long as the question, so both ways are tried. A program on
// the host just sends them, and they arrive.
func fragmentCases() []Case {
	var cases []Case
	for _, mtu := range []int{65520, 1500} {
		for _, size := range []int{8 << 10, 60_000, 65_507} { // the last is IPv4's largest
			c := both(func(d Direction, f Family) Case {
				return Case{
					Name:    fmt.Sprintf("fragments/%d-at-mtu-%d", size, mtu),
					Options: Options{MTU: mtu % 65520},
					Check: func(x *X, s *Scene) {
						server, to := x.datagrams(s, d, f)
						go echo(server)
						c, err := x.dial(s.client(d), "udp", to)
						x.Must(err)
						x.Must(x.ask(c, 10))
						x.Must(askOnce(c, size))
					},
				}
			})
			for i := range c {
				need := AsHost
				if mtu == 1500 {
					need = SetMTU
				}
				c[i].Needs = append(c[i].Needs, need)
			}
			cases = append(cases, c...)
		}
	}
	return cases
}

// askOnce is ask for a datagram that nothing is in the way of: it arrives, and
// no error comes of it.
func askOnce(c net.Conn, size int) error {
	c.SetReadDeadline(time.Now().Add(4 * again))
	if err := trade(c, size); err != nil {
		return fmt.Errorf("datagram of %d bytes: %w", size, err)
	}
	return nil
}
