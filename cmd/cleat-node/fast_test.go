package main_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"cleat/fastpath"
	"cleat/lab/labtest"
	"cleat/link"
	"cleat/overlay/control"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// echoed is numbered datagrams to a container, which sends them back, until the test ends.
type echoed struct{ sent, back atomic.Int64 }

func (k *container) echoed(to *container) *echoed {
	t := k.host.c.t
	t.Helper()
	var e echoed
	var in, out *net.UDPConn
	must(t, to.NS.Do(func() (err error) { in, err = net.ListenUDP("udp", &net.UDPAddr{Port: streamPort}); return err }))
	must(t, k.NS.Do(func() (err error) {
		out, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to.addr, streamPort)))
		return err
	}))
	go func() {
		b := make([]byte, 64)
		for {
			n, from, err := in.ReadFromUDPAddrPort(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			in.WriteToUDPAddrPort(b[:n], from)
		}
	}()
	go func() {
		b := make([]byte, 64)
		for {
			n, err := out.Read(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if n == 8 {
				e.back.Add(1)
			}
		}
	}()
	stop := make(chan struct{})
	go func() {
		for each := time.NewTicker(streamPause); ; {
			select {
			case <-each.C:
				if _, err := out.Write(binary.BigEndian.AppendUint64(nil, uint64(e.sent.Load()))); err == nil {
					e.sent.Add(1)
				}
			case <-stop:
				return
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		in.Close()
		out.Close()
	})
	return &e
}

// lost returns how many datagrams have not come back after a moment.
func (e *echoed) lost() int64 {
	sent := e.sent.Load()
	for deadline := time.Now().Add(5 * time.Second); e.back.Load() < sent && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	return max(0, sent-e.back.Load())
}

// fastCounters asks the host's keeper what went the fast way.
func (h *host) fastCounters() (c fastpath.Counters, err error) {
	out, err := h.run(h.c.t.Context(), "cleat", "net", "fast-counters")
	if err == nil {
		err = json.Unmarshal([]byte(out), &c)
	}
	return c, err
}

// goesFast returns an error unless packets in VXLAN go the fast way now.
func (h *host) goesFast() error {
	before, err := h.fastCounters()
	if err != nil {
		return err
	}
	time.Sleep(200 * time.Millisecond)
	after, err := h.fastCounters()
	if err == nil && (after.Sealed.Packets < before.Sealed.Packets+100 || after.Unsealed.Packets < before.Unsealed.Packets+100) {
		err = errors.New(h.name + ": packets go the kernel's way")
	}
	return err
}

// TestFastPath has containers of two hosts whose packets go the fast way. Its keepers are killed, and a rule denies what they
// do.
func TestFastPath(t *testing.T) {
	if !labtest.InRoot(t) {
		return
	}
	if err := fastpath.Supported(); err != nil {
		t.Skipf("%+v", err)
	}
	c := newCluster(t, 2)
	a, b := c.hosts[0], c.hosts[1]
	a.node("up", "--name", "a", "--address", a.addr.String(), "--dataplane", "vxlan")
	b.join()
	a.createSpan("web")
	one, two := a.container("one", "web"), b.container("two", "web")
	c.eventually("they reach each other", func() error { two.serve(); return one.reaches(two) })
	var inspected struct {
		Used struct{ By, Why string } `json:"datapath_used"`
	}
	must(t, json.Unmarshal([]byte(a.cleat("net", "inspect", "web", "--json")), &inspected))
	if inspected.Used.By != "bpf" || inspected.Used.Why == "" {
		t.Errorf("inspect says %+v", inspected.Used)
	}
	e := one.echoed(two)
	fast := func() error { return errors.Join(a.goesFast(), b.goesFast()) }
	c.eventually("packets go the fast way", fast)

	// What is shown of traffic includes them.
	picture := func() *control.Traffic {
		p, err := control.New(a.state).Picture(t.Context(), false)
		must(t, err)
		return p.Reports["a"].Traffic
	}
	back := uint64(e.back.Load())
	c.eventually("the picture has all datagrams until now", func() error {
		const size = 14 + 20 + 8 + 8 // of a frame
		got := picture()
		if got == nil || len(got.Links) != 1 || got.Between == nil {
			return fmt.Errorf("%+v", got)
		}
		if l := got.Links[0]; l.ReceivedPackets < back || l.Received < back*size || got.Between.SentPackets < back || got.Between.ReceivedPackets < back {
			return fmt.Errorf("%d datagrams came back; link %+v, between hosts %+v", back, l, *got.Between)
		}
		return nil
	})

	for _, h := range c.hosts {
		must(t, unix.Kill(h.keeper(), unix.SIGKILL))
	}
	time.Sleep(300 * time.Millisecond)
	if lost := e.lost(); lost > 0 {
		t.Errorf("%d datagrams got lost when the keepers were killed", lost)
	}
	c.eventually("packets go the fast way again", fast)
	if lost := e.lost(); lost > 0 {
		t.Errorf("%d datagrams got lost until new keepers ran", lost)
	}

	b.cleat("net", "deny", "web", "to", "web/two")
	c.eventually("what is denied stops", func() error { // the registry tells the hosts
		before := e.back.Load()
		time.Sleep(200 * time.Millisecond)
		if after := e.back.Load(); after != before {
			return fmt.Errorf("%d datagrams passed after they were denied", after-before)
		}
		return nil
	})
}

// TestFastDevices has networks and containers of different kinds. Those that may go the fast way have programs, and the
// settings of connection tracking that these need are there as long as there are such networks.
func TestFastDevices(t *testing.T) {
	if !labtest.InRoot(t) {
		return
	}
	if err := fastpath.Supported(); err != nil {
		t.Skipf("%+v", err)
	}
	c := newCluster(t, 1)
	h := c.hosts[0]
	h.cleat("net", "create", "bridged")
	h.cleat("net", "create", "routed", "--driver", "routed")
	h.cleat("net", "create", "plain", "--datapath", "nft")
	fast, rated, routed, plain := h.container("fast", "bridged"), h.container("rated", "bridged", "--rate", "1G"), h.container("routed", "routed"), h.container("plain", "plain")
	has := func(k *container, want bool) func() error {
		return func() error {
			in, out := k.programs()
			if n := map[bool]int{true: 1}[want]; len(in) != n || len(out) != n {
				return fmt.Errorf("programs on the device of %s: %d and %d", k.name, in, out)
			}
			return nil
		}
	}
	c.eventually("programs of a container on a bridge", has(fast, true))
	c.eventually("programs of a container without one", has(routed, true))
	must(t, errors.Join(has(rated, false)(), has(plain, false)()))
	settings := func() string {
		return c.sh(h.Node, "cat /proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal /proc/sys/net/netfilter/nf_conntrack_tcp_ignore_invalid_rst")
	}
	if got := settings(); got != "1\n1" {
		t.Errorf("settings of connection tracking: %q", got)
	}

	device := fast.hostEnd().Attrs().Name
	for _, others := range []string{"qdisc %s dev %s root tbf rate 1gbit burst 64kb latency 25ms", "filter %s dev %s egress protocol ip pref 1 u32 match u32 0 0 action mirred egress redirect dev lo"} {
		c.sh(h.Node, "tc "+fmt.Sprintf(others, "add", device))
		c.eventually("a device with "+others+" has no programs", has(fast, false))
		c.sh(h.Node, "tc "+fmt.Sprintf(others, "del", device))
		c.eventually("they are back", has(fast, true))
	}
	c.sh(h.Node, "tc qdisc del dev "+device+" clsact")
	c.eventually("programs that somebody has removed are back", has(fast, true))

	before, _ := fast.programs()
	must(t, unix.Kill(h.keeper(), unix.SIGKILL))
	h.cleat("net", "connect", "bridged", h.newContainer("another").path) // starts another keeper
	c.eventually("the next keeper has its own programs there", func() error {
		if now, _ := fast.programs(); len(now) != 1 || now[0] == before[0] {
			return fmt.Errorf("%d, before %d", now, before)
		}
		return nil
	})
	for _, n := range []string{"bridged", "routed"} {
		h.cleat("net", "rm", "--force", n)
	}
	c.eventually("the settings are as before", func() error {
		if got := settings(); got != "0\n0" {
			return fmt.Errorf("%q", got)
		}
		return nil
	})
}

// hostEnd returns the host's end of a container's link.
func (k *container) hostEnd() (l netlink.Link) {
	t := k.host.c.t
	t.Helper()
	inside, err := link.Handle(k.NS)
	must(t, err)
	defer inside.Close()
	host, err := link.Handle(k.host.NS)
	must(t, err)
	defer host.Close()
	l, err = inside.LinkByName("eth0")
	if err == nil {
		l, err = host.LinkByIndex(l.Attrs().ParentIndex)
	}
	must(t, err)
	return l
}

// programs returns the ids of the programs that see packets from a container, and to it.
func (k *container) programs() (in, out []int) {
	t := k.host.c.t
	t.Helper()
	h, err := link.Handle(k.host.NS)
	must(t, err)
	defer h.Close()
	ids := func(hook uint32) (ids []int) {
		all, err := h.FilterList(k.hostEnd(), hook)
		must(t, err)
		for _, f := range all {
			if b, ok := f.(*netlink.BpfFilter); ok {
				ids = append(ids, b.Id)
			}
		}
		return ids
	}
	return ids(netlink.HANDLE_MIN_INGRESS), ids(netlink.HANDLE_MIN_EGRESS)
}
