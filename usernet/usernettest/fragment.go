package usernettest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"cleat/lab"

	"golang.org/x/sys/unix"
)

// fragmentCases send datagrams longer than the MTU, inside or on the host's uplink. The
// answer is as long as the request, so both directions are tried. From a program on the
// host such datagrams arrive.
func fragmentCases() []Case {
	var cases []Case
	for _, mtu := range []int{65520, 1500} {
		for _, size := range []int{8 << 10, 60_000, 65_507} { // the last is the largest of IPv4
			c := both(func(d Direction, f Family) Case {
				return Case{
					Name:    fmt.Sprintf("fragments/%d-at-mtu-%d", size, mtu),
					Options: Options{MTU: mtu % 65520},
					Check: func(x *T, s *Env) {
						server, to := x.udpServer(s, d, f)
						go echoUDP(server)
						c, err := x.dial(s.client(d), "udp", to)
						x.Must(err)
						x.Must(x.echoed(c, 10))
						x.Must(echoedOnce(c, size))
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
	return append(cases, Case{Name: "fragments/path-mtu/" + V4.String(), Needs: []Ability{AsHost}, Check: pathMTU})
}

// pathMTU checks a program that probes the path's MTU. After a longer datagram was sent,
// its socket refuses others of that size and reports the same MTU as the host's socket
// does.
func pathMTU(x *T, s *Env) {
	_, to := x.udpServer(s, Out, V4)
	host, err := x.probeMTU(s.Host, to)
	x.Must(err)
	inside, err := x.probeMTU(s.Container, to)
	x.Must(err)
	if inside != host {
		x.Fatalf("the path's MTU is %d inside, %d on the host", inside, host)
	}
}

// probeMTU sends IPv4 datagrams that must not be fragmented until the socket refuses
// them. It returns the MTU that the socket then reports.
func (x *T) probeMTU(n *lab.Node, to netip.AddrPort) (int, error) {
	socket := func() (fd int, err error) {
		doErr := n.NS.Do(func() (err error) {
			fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			return err
		})
		return fd, errors.Join(doErr, unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO))
	}
	fd, err := socket()
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	at := &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
	for {
		err := unix.Sendto(fd, make([]byte, 3000), 0, at)
		if errors.Is(err, unix.EMSGSIZE) {
			break
		}
		if err != nil || x.ctx.Err() != nil {
			return 0, fmt.Errorf("send 3000 bytes that must not be fragmented: %w", errors.Join(err, x.ctx.Err()))
		}
		time.Sleep(10 * time.Millisecond)
	}
	// Only a connected socket reports it.
	connected, err := socket()
	if err != nil {
		return 0, err
	}
	defer unix.Close(connected)
	if err := unix.Connect(connected, at); err != nil {
		return 0, err
	}
	return unix.GetsockoptInt(connected, unix.IPPROTO_IP, unix.IP_MTU)
}

// echoedOnce is echoed without retries: the datagram must arrive, and cause no error.
func echoedOnce(c net.Conn, size int) error {
	c.SetReadDeadline(time.Now().Add(4 * retryAfter))
	if err := sendAndReceive(c, size); err != nil {
		return fmt.Errorf("datagram of %d bytes: %w", size, err)
	}
	return nil
}
