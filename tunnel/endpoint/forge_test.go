package endpoint_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cleat/lab"
	"cleat/packet"

	"golang.org/x/sys/unix"
)

// forger is a node on a path that sends both ends ICMP errors about the tunnel's packets
// from an address of its own. It has to know only the ends' addresses and their port,
// 4754.
type forger struct {
	t      *testing.T
	family int
	fd     int
	ends   [2]netip.Addr
	sent   atomic.Int64
}

func (b *testbed) forger(path int) *forger {
	b.t.Helper()
	f := &forger{t: b.t, family: b.families[path]}
	n, err := lab.NewNode(fmt.Sprintf("forger%d", path))
	must(b.t, err)
	b.t.Cleanup(func() { n.Close() })
	_, err = b.middle[path].Plug(lab.End{Node: n, Name: "wire"}, 0)
	must(b.t, err)
	own := netip.MustParsePrefix("203.0.113.66/32")
	if f.family == 6 {
		own = netip.MustParsePrefix(fmt.Sprintf("2001:db8:%d::66/64", 1+path))
	}
	must(b.t, n.Address("wire", own))
	for i, e := range b.ends {
		f.ends[i] = outerPrefix(i, path, f.family).Addr()
		if f.family == 4 {
			addRoute(b.t, n, "wire", f.ends[i], netip.Addr{})
			for _, name := range []string{"all", deviceName(path)} {
				must(b.t, e.node.Sysctl("net/ipv4/conf/"+name+"/rp_filter", "0"))
			}
		}
		must(b.t, e.node.Sysctl("net/ipv4/icmp_ratelimit", "0"))
	}
	domain, proto := unix.AF_INET, unix.IPPROTO_ICMP
	if f.family == 6 {
		domain, proto = unix.AF_INET6, unix.IPPROTO_ICMPV6
	}
	must(b.t, n.NS.Do(func() (err error) {
		f.fd, err = unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, proto)
		return err
	}))
	b.t.Cleanup(func() { unix.Close(f.fd) })
	return f
}

// send sends an end an ICMP error about a packet to the other.
func (f *forger) send(to int, kind, code byte, mtu int) {
	f.t.Helper()
	from, at := f.ends[1-to], f.ends[to]
	b := []byte{kind, code, 0, 0, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(b[4:], uint32(mtu))
	about := make([]byte, packet.IPv6Bytes+packet.UDPBytes)
	n := packet.PutIP(about, at, from, packet.UDP, 0, 500)
	packet.PutUDP(about[n:], tunnelPort, tunnelPort, 500-packet.UDPBytes)
	b = append(b, about[:n+packet.UDPBytes]...)
	var err error
	if f.family == 4 {
		binary.BigEndian.PutUint16(b[2:], packet.Checksum(b))
		err = unix.Sendto(f.fd, b, 0, &unix.SockaddrInet4{Addr: at.As4()})
	} else {
		err = unix.Sendto(f.fd, b, 0, &unix.SockaddrInet6{Addr: at.As16()})
	}
	switch err {
	case nil:
		f.sent.Add(1)
	case unix.ENOBUFS: // this node's queue is full
	default:
		f.t.Errorf("send a forged error to %v: %v", at, err)
	}
}

// errors sends each end, once, every error that Linux treats as fatal for a connection,
// and that a packet is too big.
func (f *forger) errors() {
	for to := range f.ends {
		if f.family == 4 {
			for code := range byte(16) {
				f.send(to, 3, code, 600) // destination unreachable; 4: fragmentation needed
			}
			f.send(to, 12, 0, 0) // parameter problem
			continue
		}
		for code := range byte(8) {
			f.send(to, 1, code, 0)
		}
		f.send(to, 2, 0, 1280) // packet too big
		f.send(to, 4, 1, 0)
	}
}

// TestForgedErrors keeps sending forged ICMP errors: no path may be left because of them
// or change its MTU, and every packet must be sent. On a busy machine a path may be left
// for a moment because acknowledgements are missing, so not every death fails the test.
func TestForgedErrors(t *testing.T) {
	for _, key := range []bool{false, true} {
		t.Run(fmt.Sprintf("key %v", key), func(t *testing.T) {
			b := newTestbed(t, topology{outside: []int{4, 6, 4}, key: key})
			forgers := []*forger{b.forger(0), b.forger(1), b.forger(2)}
			ctx, stop := context.WithCancel(t.Context())
			var forging sync.WaitGroup
			t.Cleanup(func() {
				stop()
				forging.Wait()
			})
			forging.Go(func() {
				tick := time.NewTicker(2 * time.Millisecond)
				defer tick.Stop()
				for ; ctx.Err() == nil; <-tick.C {
					for _, f := range forgers {
						f.errors()
					}
				}
			})
			s := b.startTransfers(2)
			eventually(t, 20*time.Second, func() bool {
				for _, f := range forgers {
					if f.sent.Load() < 20_000 {
						return false
					}
				}
				return true
			}, func() string { return "too few forged errors were sent" })
			for _, e := range b.ends { // what the kernel has learned must not be believed either
				e.command("down p0")
				e.command("up p0")
				e.command("down p1")
				e.command("up p1")
			}
			b.waitPaths(5*time.Second, 0, 1, 2)
			stop()
			forging.Wait()
			if sent, err := s.finish(); err != nil || sent == 0 {
				t.Errorf("sent %d bytes: %v", sent, err)
			}
			for _, e := range b.ends {
				log, err := os.ReadFile(e.file + ".log")
				must(t, err)
				for line := range strings.Lines(string(log)) {
					if strings.HasPrefix(line, "dead ") && !strings.Contains(line, "taken it out of use") && !strings.HasSuffix(line, "<nil>\n") || strings.HasPrefix(line, "resized") {
						t.Errorf("%s said: %s", e.name, line)
					}
				}
				s := e.status()
				if s.SendErrors > 0 {
					t.Errorf("%s: %d messages were dropped", e.name, s.SendErrors)
				}
				for _, p := range s.Paths {
					if p.MTU != 1500 {
						t.Errorf("%s: path %s has an MTU of %d", e.name, p.Name, p.MTU)
					}
				}
			}
		})
	}
}

// TestPortIsNotShared has another user's program try to open the port of a path in order
// to receive the tunnel's packets.
func TestPortIsNotShared(t *testing.T) {
	b := newTestbed(t, topology{outside: []int{4, 6}})
	for path, family := range b.plan.outside {
		at, peer := outerPrefix(0, path, family).Addr(), outerPrefix(1, path, family).Addr()
		domain := unix.AF_INET
		sockaddr := func(a netip.Addr) unix.Sockaddr {
			return &unix.SockaddrInet4{Port: tunnelPort, Addr: a.As4()}
		}
		if family == 6 {
			domain = unix.AF_INET6
			sockaddr = func(a netip.Addr) unix.Sockaddr {
				return &unix.SockaddrInet6{Port: tunnelPort, Addr: a.As16()}
			}
		}
		for _, share := range []int{unix.SO_REUSEADDR, unix.SO_REUSEPORT} {
			must(t, b.ends[0].node.NS.Do(func() error {
				if share == unix.SO_REUSEPORT {
					if err := unix.Setfsuid(65534); err != nil {
						return err
					}
					defer unix.Setfsuid(0)
					if now, _ := unix.SetfsuidRetUid(-1); now != 65534 {
						return nil // this namespace has only one user
					}
				}
				fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					return err
				}
				defer unix.Close(fd)
				if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, share, 1); err != nil {
					return err
				}
				if err := unix.BindToDevice(fd, deviceName(path)); err != nil {
					return err
				}
				if err := unix.Bind(fd, sockaddr(at)); err == nil {
					t.Errorf("path %d: another program can share its port (option %d); connect: %v", path, share, unix.Connect(fd, sockaddr(peer)))
				} else if err != unix.EADDRINUSE {
					t.Errorf("path %d: %v", path, err)
				}
				return nil
			}))
		}
	}
}

// TestSources has a network behind one end send through the tunnel, first without being
// listed in the other end's file.
func TestSources(t *testing.T) {
	b := newTestbed(t, topology{outside: []int{4}, key: true})
	far := b.addHostBehind(0)
	foreign := uint64(0)
	for _, family := range []int{4, 6} {
		d := openDatagrams(t, far, b.ends[1].node, farAddr(family).Addr(), innerAddr(1, family))
		eventually(t, 5*time.Second, func() bool {
			_, _ = d.from.Write([]byte("foreign"))
			return b.ends[1].status().WrongSource > foreign
		}, func() string { return "no packets from a wrong source were counted" })
		foreign = b.ends[1].status().WrongSource
	}
	transferTCP(t, b.ends[0].node, b.ends[1].node, innerAddr(1, 4), 1<<20)
	text, err := os.ReadFile(b.ends[1].file)
	must(t, err)
	must(t, os.WriteFile(b.ends[1].file, append(text, farSources+"\n"...), 0o600))
	b.ends[1].command("reload")
	for _, family := range []int{4, 6} {
		transferTCP(t, far, b.ends[1].node, innerAddr(1, family), 1<<20)
	}
}
