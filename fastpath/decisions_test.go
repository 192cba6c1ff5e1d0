package fastpath_test

import (
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cleat/fastpath"
	"cleat/lab"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	bpflink "github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestDecisions changes what a host decides about a flow that goes the fast way. Soon nothing of it arrives.
func TestDecisions(t *testing.T) {
	forget := func(t *testing.T, h *host) {
		must(t, h.NS.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }))
	}
	rule := func(line string) func(t *testing.T, h *host) {
		return func(t *testing.T, h *host) { run(t, h.Node, "", line) }
	}
	overVXLAN, in := true, false
	for _, c := range []struct {
		name   string
		vxlan  bool // otherwise the client is outside, and asks a published port
		at     int  // host
		change func(t *testing.T, h *host)
	}{
		{"a rule of the sender's host", overVXLAN, 1, rule("nft insert rule inet filter forwarded ip daddr 10.64.2.3 udp dport 80 drop")},
		{"a rule of the receiver's host", overVXLAN, 2, rule("nft insert rule inet filter forwarded ip daddr 10.64.2.3 udp dport 80 drop")},
		{"a rule in iptables", overVXLAN, 2, rule("iptables -I FORWARD -d 10.64.2.3 -j DROP")},
		{"a rule about hosts", overVXLAN, 2, rule("nft insert rule inet raw in ip saddr 192.0.2.1 udp dport 4789 drop")},
		{"a rule about packets to hosts", overVXLAN, 1, rule("nft insert rule inet raw out udp dport 4789 drop")},
		{"a policy and connections ended", overVXLAN, 2, func(t *testing.T, h *host) {
			run(t, h.Node, "", "nft flush chain inet filter forwarded")
			forget(t, h)
		}},
		{"no route", overVXLAN, 1, rule("ip route replace blackhole 10.64.2.0/24")},
		{"no forwarding entry", overVXLAN, 1, rule("bridge fdb del 02:00:00:00:00:02 dst 192.0.2.2 dev vx")},
		{"no VXLAN device", overVXLAN, 2, rule("ip link del vx")},
		{"no forwarding", overVXLAN, 2, rule("sysctl -qw net.ipv4.ip_forward=0")},
		{"no link", overVXLAN, 2, rule("ip link set c3 down")},
		{"unpublished", in, 1, func(t *testing.T, h *host) {
			run(t, h.Node, "", "nft flush chain ip translate before")
			forget(t, h)
		}},
		{"a rule about a port", in, 1, rule("nft insert rule inet filter forwarded udp dport 80 drop")},
		{"published for another container", in, 1, func(t *testing.T, h *host) {
			run(t, h.Node, "", "nft flush chain ip translate before")
			run(t, h.Node, "", "nft add rule ip translate before udp dport 8080 dnat to 10.64.1.3:80")
			forget(t, h)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tb := newTestbed(t, c.vxlan, false)
			client, server, from, to := tb.hosts[1].containers[2], tb.hosts[2].containers[3], address(1, 2), netip.AddrPortFrom(address(2, 3), 80)
			if !c.vxlan {
				client, server, from, to = tb.outside, tb.hosts[1].containers[2], netip.MustParseAddr("192.0.2.9"), netip.MustParseAddrPort("192.0.2.1:8080")
			}
			h := tb.hosts[c.at]
			h.fast()
			s := newStream(t, client, server, from, to)
			s.await(func() bool { return fastPackets(t, h) > 100 })
			c.change(t, h)
			changed := time.Now()
			const soon = 100 * time.Millisecond // of the kernel's clock, however busy the machine is
			time.Sleep(5 * soon)
			last := s.last()
			if last.Unix() == 0 || last.Sub(changed) > soon {
				t.Errorf("packets arrived that were sent %s after the change", last.Sub(changed))
			}
			t.Logf("the last packet that arrived was sent %s after the change", last.Sub(changed).Round(time.Millisecond))
		})
	}
}

func fastPackets(t *testing.T, h *host) (n uint64) {
	t.Helper()
	flows, err := h.path.Flows()
	must(t, err)
	for _, f := range flows {
		n = max(n, f.Packets)
	}
	return n
}

// stream is a datagram each half millisecond, which the server answers. Each has the time at which it was sent.
type stream struct {
	t       testing.TB
	arrived atomic.Int64 // when the last one was sent that arrived, in nanoseconds of Unix
}

func newStream(t testing.TB, client, server *lab.Node, from netip.Addr, to netip.AddrPort) *stream {
	t.Helper()
	s := &stream{t: t}
	l := listenUDP(t, server, netip.AddrPortFrom(unspecified(to.Addr()), 80))
	go func() {
		b := make([]byte, 64)
		for {
			n, from, err := l.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			sent, err := time.Parse(time.RFC3339Nano, string(b[:n]))
			if err == nil {
				s.arrived.Store(sent.UnixNano())
			}
			l.WriteToUDPAddrPort(b[:n], from)
		}
	}()
	c := dial(t, client, "udp", from, to)
	done := make(chan struct{})
	t.Cleanup(func() { close(done) })
	go func() {
		for each := time.NewTicker(500 * time.Microsecond); ; {
			select {
			case <-each.C:
				c.Write(time.Now().AppendFormat(nil, time.RFC3339Nano)) // answers of the kernel are errors of the next call
			case <-done:
				return
			}
		}
	}()
	return s
}

func (s *stream) last() time.Time { return time.Unix(0, s.arrived.Load()) }

func (s *stream) await(is func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatal("packets don't go the fast way")
		}
	}
}

// TestOthers has programs of others on a device. Packets meet them.
func TestOthers(t *testing.T) {
	for _, c := range []struct {
		name  string
		begin func(t *testing.T, h *host) (end func())
	}{
		{"tcx", func(t *testing.T, h *host) func() { return dropAll(t, h, "c2", ebpf.AttachTCXIngress) }},
		{"tcx to the container", func(t *testing.T, h *host) func() { return dropAll(t, h, "c2", ebpf.AttachTCXEgress) }},
		{"a classifier", func(t *testing.T, h *host) func() { return classifyAll(t, h, "c2", netlink.HANDLE_MIN_INGRESS) }},
		{"a classifier to the container", func(t *testing.T, h *host) func() { return classifyAll(t, h, "c2", netlink.HANDLE_MIN_EGRESS) }},
		{"a classifier on the wire", func(t *testing.T, h *host) func() { return classifyAll(t, h, "eth0", netlink.HANDLE_MIN_INGRESS) }},
		{"tcx on the wire", func(t *testing.T, h *host) func() { return dropAll(t, h, "eth0", ebpf.AttachTCXIngress) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			tb := newTestbed(t, true, false)
			h := tb.hosts[1]
			h.fast()
			go echo(listenUDP(t, tb.hosts[2].containers[3], netip.MustParseAddrPort("0.0.0.0:80")))
			d := dial(t, h.containers[2], "udp", address(1, 2), netip.AddrPortFrom(address(2, 3), 80))
			if n := exchange(t, d, 200); n != 200 {
				t.Fatalf("%d answers", n)
			}
			end := c.begin(t, h)
			h.sync()
			if n := exchange(t, d, 1); n != 0 {
				t.Error("a packet did not meet the program of somebody else")
			}
			end()
			before := fastPackets(t, h)
			h.sync()
			if n := exchange(t, d, 200); n != 200 {
				t.Fatalf("%d answers after the other program has gone", n)
			}
			if fastPackets(t, h) < before+100 {
				t.Error("packets don't go the fast way again")
			}
		})
	}
}

// TestWithoutTCX has wires have their programs as before Linux 6.6. Nothing is left of them in the end.
func TestWithoutTCX(t *testing.T) {
	tb := newTestbed(t, true, false)
	for _, h := range tb.hosts[1:] {
		h.fast()
		wired := h.devices
		h.devices = nil
		h.sync()
		h.path.WithoutTCX()
		h.devices = wired
		h.sync()
	}
	go echo(listenUDP(t, tb.hosts[2].containers[3], netip.MustParseAddrPort("0.0.0.0:80")))
	d := dial(t, tb.hosts[1].containers[2], "udp", address(1, 2), netip.AddrPortFrom(address(2, 3), 80))
	const n = 500
	if got := exchange(t, d, n); got != n {
		t.Fatalf("%d answers", got)
	}
	for _, h := range tb.hosts[1:] {
		flows, err := h.path.Flows()
		must(t, err)
		if len(flows) != 2 || flows[0].Packets < n/2 || flows[1].Packets < n/2 {
			t.Errorf("%s: flows %+v", h, flows)
		}
		h.devices = nil
		h.sync()
		all := run(t, h.Node, "", "tc qdisc show")
		if strings.Contains(all, "clsact") {
			t.Errorf("%s: left: %s", h, all)
		}
	}
}

// TestClear removes what a Path leaves on containers' devices when its process is killed, and nothing of others.
func TestClear(t *testing.T) {
	tb := newTestbed(t, false, false)
	h := tb.hosts[1]
	h.fast()
	classifyAll(t, h, "c3", netlink.HANDLE_MIN_INGRESS)
	must(t, h.NS.Do(func() error { return errors.Join(fastpath.Clear(h.index("c2")), fastpath.Clear(h.index("c3"))) }))
	for device, want := range map[string]bool{"c2": false, "c3": true} {
		if all := run(t, h.Node, "", "tc filter show dev "+device+" ingress"); strings.Contains(all, "cleat") || strings.Contains(all, "drop") != want {
			t.Errorf("%s has %s", device, all)
		}
		if all := run(t, h.Node, "", "tc qdisc show dev "+device); strings.Contains(all, "clsact") != want {
			t.Errorf("%s has %s", device, all)
		}
	}
}

// dropProgram drops all packets.
func dropProgram(t *testing.T) *ebpf.Program {
	t.Helper()
	const drop = 2
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, drop), asm.Return()}})
	must(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

// dropAll attaches a program that drops all packets.
func dropAll(t *testing.T, h *host, device string, at ebpf.AttachType) (end func()) {
	t.Helper()
	p := dropProgram(t)
	var l bpflink.Link
	must(t, h.NS.Do(func() (err error) {
		l, err = bpflink.AttachTCX(bpflink.TCXOptions{Interface: h.index(device), Program: p, Attach: at})
		return err
	}))
	return func() { l.Close() }
}

// classifyAll adds a classifier that drops all packets.
func classifyAll(t *testing.T, h *host, device string, hook uint32) (end func()) {
	t.Helper()
	f := &netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{LinkIndex: h.index(device), Parent: hook, Protocol: unix.ETH_P_ALL, Priority: 1}, Fd: dropProgram(t).FD(), Name: "drop", DirectAction: true}
	q := &netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: f.LinkIndex, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}, QdiscType: "clsact"}
	must(t, h.NS.Do(func() error {
		if err := netlink.QdiscAdd(q); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
		return netlink.FilterAdd(f)
	}))
	return func() { must(t, h.NS.Do(func() error { return netlink.FilterDel(f) })) }
}
