package usernettest

import "fmt"

// fragmentCases: datagrams longer than the MTU. The answer is as long as the
// question, so both ways are tried.
func fragmentCases() []Case {
	var cases []Case
	for _, mtu := range []int{65520, 1500} {
		for _, size := range []int{8 << 10, 60_000} {
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
						x.Must(x.ask(c, size))
					},
				}
			})
			for i := range c {
				if mtu == 1500 {
					c[i].Needs = append(c[i].Needs, SetMTU)
				}
			}
			cases = append(cases, c...)
		}
	}
	return cases
}
