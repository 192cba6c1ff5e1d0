package main_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"cleat/lab"
	"cleat/network/span"

	"golang.org/x/sys/unix"
)

// TestInjectedVXLAN sends datagrams with packets for another network, as a container and as a stranger on the segment.
func TestInjectedVXLAN(t *testing.T) {
	t.Parallel()
	w := newHostile(t, "all")
	stranger := w.newHost("stranger", netip.MustParseAddr("192.0.2.9"))
	w.hosts = w.hosts[:2]
	b := w.hosts[1]
	var mac net.HardwareAddr
	must(t, b.NS.Do(func() error {
		l, err := net.InterfaceByName(span.Device)
		if err == nil {
			mac = l.HardwareAddr
		}
		return err
	}))
	inner := func(text string) []byte {
		frame := append(append(append([]byte{8, 0, 0, 0, 0, 0x1e, 0x6e, 0}, mac...), 2, 0, 0, 0, 0, 1), 8, 0)
		return append(frame, datagram(netip.AddrPortFrom(w.apart.addr, 1), netip.AddrPortFrom(w.remote.addr, hearPort), text)...)
	}
	send := func(from *lab.Node, to, text string) {
		t.Helper()
		must(t, from.NS.Do(func() error {
			c, err := net.Dial("udp", net.JoinHostPort(to, "4789"))
			if err != nil {
				return err
			}
			defer c.Close()
			c.Write(inner(text)) // it may be refused
			return nil
		}))
	}
	for _, to := range []string{w.hosts[0].addr.String(), b.addr.String(), "10.64.0.1", w.far.addr.String()} {
		send(w.evil.Node, to, "of a container to "+to)
		send(w.apart.Node, to, "of a container of the network to "+to)
	}
	send(stranger.Node, b.addr.String(), "of a stranger")
	if got := w.hears(w.remote, w.apart); len(got) > 0 {
		t.Errorf("remote hears %q", got)
	}
	// A host's own arrive.
	send(w.hosts[0].Node, b.addr.String(), "of a host")
	w.eventuallyHears(w.remote, w.apart, "of a host")
	if err := w.allIsWell(); err != nil {
		t.Error(err)
	}
}

// TestNodesAreClosed connects from a container to the nodes of all hosts and to whatever else hosts listen with.
func TestNodesAreClosed(t *testing.T) {
	t.Parallel()
	for _, access := range []string{"gateway", "all"} {
		t.Run("host access "+access, func(t *testing.T) {
			w := newHostile(t, access)
			for _, h := range w.hosts {
				open := h.openPorts()
				for _, port := range open {
					if port != 53 && port != 7790 {
						t.Errorf("host %s listens at TCP port %d", h.name, port)
					}
				}
				if len(open) == 0 {
					t.Errorf("no open ports are found on host %s", h.name)
				}
			}
			for _, to := range []string{"10.64.0.1", w.hosts[0].addr.String(), w.hosts[1].addr.String(), "[fd00:64::1]", "10.64.64.1"} {
				if _, err := w.dial(w.evil, "tcp", to+":7790"); err == nil {
					t.Errorf("evil reaches the node at %s", to)
				}
			}
			// Hosts do, and the container reaches what else it may.
			if _, err := w.dial(&container{Node: w.hosts[0].Node}, "tcp", w.hosts[1].addr.String()+":7790"); err != nil {
				t.Error(err)
			}
			if _, err := w.dial(w.evil, "tcp", "10.64.0.1:53"); err != nil {
				t.Error(err)
			}
		})
	}
}

func (w *hostile) dial(k *container, network, to string) (local string, err error) {
	err = k.NS.Do(func() error {
		c, err := net.DialTimeout(network, to, 300*time.Millisecond)
		if err == nil {
			local = c.LocalAddr().String()
			c.Close()
		}
		return err
	})
	return local, err
}

// openPorts returns the TCP ports at which the host listens, other than at its loopback.
func (h *host) openPorts() (ports []uint16) {
	h.c.t.Helper()
	must(h.c.t, h.NS.Do(func() error {
		for _, file := range []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"} {
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
				const listens = "0A"
				f := strings.Fields(lines.Text())
				if len(f) < 4 || f[3] != listens || strings.HasPrefix(f[1], "0100007F:") {
					continue
				}
				_, port, _ := strings.Cut(f[1], ":")
				n, err := strconv.ParseUint(port, 16, 16)
				if err != nil {
					return err
				}
				ports = append(ports, uint16(n))
			}
		}
		return nil
	}))
	return ports
}

// TestOthersNames asks for names of another network, at all name servers of the host.
func TestOthersNames(t *testing.T) {
	t.Parallel()
	w := newHostile(t, "gateway")
	lookup := func(k *container, server, name string) ([]string, error) {
		i := &inmate{container: k, network: &spanned{subnet: netip.PrefixFrom(netip.MustParseAddr(server).Prev(), 18)}}
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond) // servers of other networks don't answer
		defer cancel()
		var got []string
		err := k.NS.Do(func() (err error) {
			got, err = i.resolver().LookupHost(ctx, name)
			return err
		})
		return got, err
	}
	for _, name := range []string{"remote.", "remote.db.", "apart.", "apart.db."} {
		for _, server := range []string{"10.64.0.1", "10.64.64.1"} {
			if got, err := lookup(w.evil, server, name); err == nil {
				t.Errorf("evil learns at %s that %s is %s", server, name, got)
			}
		}
	}
	if got, err := lookup(w.apart, "10.64.64.1", "remote.db."); err != nil {
		t.Errorf("apart finds remote at %s: %v", got, err)
	}
}

// TestOthersPackets listens to all that comes by a container's link while others talk.
func TestOthersPackets(t *testing.T) {
	t.Parallel()
	w := newHostile(t, "gateway")
	var fd int
	must(t, w.evil.NS.Do(func() (err error) {
		all := uint16(unix.ETH_P_ALL)
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all>>8|all<<8))
		return err
	}))
	defer unix.Close(fd)
	const secret = "not for others"
	say := func(k *container, network, to string) {
		t.Helper()
		must(t, k.NS.Do(func() error {
			d := net.Dialer{Control: broadcasts}
			c, err := d.DialContext(t.Context(), network, to)
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write([]byte(secret))
			return err
		}))
	}
	for range 10 {
		say(w.near, "udp", netip.AddrPortFrom(w.far.addr, hearPort).String())
		say(w.far, "udp", netip.AddrPortFrom(w.near.addr, hearPort).String())
		say(w.near, "udp", "255.255.255.255:10")
		say(w.near, "udp", "224.0.0.251:5353")
		say(w.near, "udp", "10.64.63.255:10")
		say(w.apart, "udp", "224.0.0.251:5353")
		say(w.near, "udp", "[ff02::1%eth0]:10")
	}
	w.hears(w.far, w.near)
	// What arrives at the container is heard.
	must(t, w.near.NS.Do(func() error {
		c, err := net.Dial("udp", netip.AddrPortFrom(w.evil.addr, hearPort).String())
		if err == nil {
			_, err = c.Write([]byte(end))
			c.Close()
		}
		return err
	}))
	b := make([]byte, 2000)
	for {
		n, _, err := unix.Recvfrom(fd, b, 0)
		must(t, err)
		if bytes.Contains(b[:n], []byte(secret)) {
			t.Fatalf("evil hears %x", b[:n])
		}
		if bytes.Contains(b[:n], []byte(end)) {
			return
		}
	}
}

// broadcasts lets a socket send to all.
func broadcasts(_, _ string, c syscall.RawConn) error {
	var err error
	return errors.Join(c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1) }), err)
}
