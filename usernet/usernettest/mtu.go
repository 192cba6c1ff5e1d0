package usernettest

import (
	"fmt"
	"strings"

	"cleat/link"
)

// mtuCases check integrity over devices with small MTUs.
func mtuCases() []Case {
	var cases []Case
	for _, mtu := range []int{1500, 1280, 576} {
		add := both(func(d Direction, f Family) Case {
			return Case{
				Name: fmt.Sprintf("mtu/%d", mtu), Needs: []Ability{SetMTU}, Options: Options{MTU: mtu},
				Check: func(x *T, s *Env) {
					l, err := link.Find(s.Container.NS, s.Device)
					x.Must(err)
					got, err := l.MTU()
					x.Must(err)
					if got != mtu {
						x.Fatalf("the container's device has MTU %d, want %d", got, mtu)
					}
					in, out := x.pair(s, d, f)
					bytes := x.transferBytes() / 16
					x.Must(transfer(in, out, bytes, 20))
					in, out = x.pair(s, d, f)
					x.Must(transfer(out, in, bytes, 21))
					in, out = x.pair(s, d, f)
					x.Both(func() error { return transfer(in, out, bytes, 22) }, func() error { return transfer(out, in, bytes, 23) })
				},
			}
		})
		for _, c := range add {
			if mtu >= minIPv6MTU || !strings.HasSuffix(c.Name, "/"+V6.String()) {
				cases = append(cases, c)
			}
		}
	}
	return cases
}
