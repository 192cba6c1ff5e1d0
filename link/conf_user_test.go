package link_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"cleat/link"
	"cleat/netns"

	"golang.org/x/sys/unix"
)

func tunSuite() suite {
	on := func(change func(*link.TunSpec)) link.Spec {
		s := link.TunSpec{Attrs: attrs("probe"), Mode: link.TunEthernet}
		change(&s)
		return s
	}
	return suite{
		kind: "tun",
		valid: []link.Spec{
			link.TunSpec{Attrs: probe, Mode: link.TunEthernet, Queues: 3, VNetHdr: true, Persist: true, Owner: 7, Group: 9},
			link.TunSpec{Attrs: withoutMAC(probe), Mode: link.TunIP, PacketInfo: true},
		},
		adapt: func(t *testing.T, _ *netns.NS, spec link.Spec, to link.Target) (link.Spec, link.Target) {
			s := spec.(link.TunSpec)
			if !mapped(t, "uid", s.Owner) || !mapped(t, "gid", s.Group) {
				s.Owner, s.Group = 0, 0
			}
			return s, to
		},
		invalid: append(invalidAttrs(func(a link.Attrs) link.Spec { return link.TunSpec{Attrs: a, Mode: link.TunEthernet} }),
			invalidSpec{"mac", on(func(s *link.TunSpec) { s.Mode, s.MAC = link.TunIP, probe.MAC })},
			invalidSpec{"mode", on(func(s *link.TunSpec) { s.Mode = "tan" })},
			invalidSpec{"queues", on(func(s *link.TunSpec) { s.Queues = 257 })},
			invalidSpec{"owner", on(func(s *link.TunSpec) { s.Owner = -1 })},
			invalidSpec{"group", on(func(s *link.TunSpec) { s.Group = 1 << 32 })},
		),
		scenarios: []scenario{
			{"tun", func(t *testing.T) { tunPasses(t, link.TunSpec{Mode: link.TunIP}) }},
			{"tap", func(t *testing.T) { tunPasses(t, link.TunSpec{Mode: link.TunEthernet}) }},
			{"offload", func(t *testing.T) { tunPasses(t, link.TunSpec{Mode: link.TunIP, VNetHdr: true}) }},
			{"queues", tunQueues}, {"exists", tunExists},
		},
	}
}

// mapped reports whether an ID is mapped in our user namespace. An unprivileged lab has
// only one.
func mapped(t *testing.T, what string, id int) bool {
	t.Helper()
	b, err := os.ReadFile("/proc/self/" + what + "_map")
	must(t, err)
	for line := range strings.Lines(string(b)) {
		var first, outside, count int
		if _, err := fmt.Sscan(line, &first, &outside, &count); err == nil && id >= first && id < first+count {
			return true
		}
	}
	return id < 0 || id >= 1<<32 // invalid IDs count as mapped: Validate refuses them
}

// tunPasses connects two TUN devices by copying packets from each to the other.
func tunPasses(t *testing.T, spec link.TunSpec) {
	var ends []*endpoint
	var files []*os.File
	for i, address := range []string{"192.0.2.1/24", "192.0.2.2/24"} {
		spec.Name = "tun0"
		tun, err := link.OpenTun(newNS(t, []string{"a", "b"}[i]), spec)
		must(t, err)
		t.Cleanup(func() { must(t, tun.Close()) })
		if spec.VNetHdr {
			must(t, tun.OffloadAll())
		}
		files = append(files, tun.Files()...)
		ends = append(ends, newEndpoint(t, up(t, tun.Link()), address))
	}
	var relay sync.WaitGroup
	relay.Go(func() { copyPackets(files[0], files[1]) })
	relay.Go(func() { copyPackets(files[1], files[0]) })
	t.Cleanup(func() {
		for _, f := range files {
			f.Close()
		}
		relay.Wait()
	})
	checkReachable(t, ends[0], ends[1])
}

func copyPackets(from, to *os.File) {
	buf := make([]byte, 1<<17)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		to.Write(buf[:n])
	}
}

// tunQueues opens several queues of a device.
func tunQueues(t *testing.T) {
	ns := newNS(t, "a")
	tun, err := link.OpenTun(ns, link.TunSpec{Attrs: attrs("tun0"), Queues: 3})
	must(t, err)
	if n := len(tun.Files()); n != 3 {
		t.Errorf("%d queues are open, want 3", n)
	}
	got, err := tun.Link().Spec()
	must(t, err)
	if q := got.(link.TunSpec).Queues; q != 3 {
		t.Errorf("the kernel has %d queues, want 3", q)
	}
	must(t, tun.Close())
	if _, err := link.Find(ns, "tun0"); !errors.Is(err, unix.ENODEV) {
		t.Errorf("find the device after Close: %v, want ENODEV", err)
	}
}

// tunExists shows that a device that others hold open is neither attached to nor
// removed.
func tunExists(t *testing.T) {
	ns := newNS(t, "a")
	spec := link.TunSpec{Attrs: attrs("tun0"), Queues: 1}
	first, err := link.OpenTun(ns, spec)
	must(t, err)
	defer first.Close()
	if _, err := link.OpenTun(ns, spec); !errors.Is(err, link.ErrExists) {
		t.Errorf("open a second device with the same name: %v, want ErrExists", err)
	}
	find(t, ns, "tun0")
	cable(t, ns, "eth0", ns, "wire")
	spec.Name = "eth0"
	if _, err := link.OpenTun(ns, spec); !errors.Is(err, link.ErrExists) {
		t.Errorf("open a device with the name of a veth: %v, want ErrExists", err)
	}
}

func ifbSuite() suite {
	return suite{
		kind:      "ifb",
		valid:     []link.Spec{link.IFBSpec{Attrs: probe}},
		invalid:   invalidAttrs(func(a link.Attrs) link.Spec { return link.IFBSpec{Attrs: a} }),
		scenarios: []scenario{{"redirect", ifbCounts}},
	}
}

// ifbCounts sends through the device directly. It drops and counts packets that were
// not redirected to it.
func ifbCounts(t *testing.T) { checkDiscards(t, link.IFBSpec{Attrs: attrs("ifb0")}) }

func dummySuite() suite {
	return suite{
		kind:      "dummy",
		valid:     []link.Spec{link.DummySpec{Attrs: probe}},
		invalid:   invalidAttrs(func(a link.Attrs) link.Spec { return link.DummySpec{Attrs: a} }),
		scenarios: []scenario{{"discards", func(t *testing.T) { checkDiscards(t, link.DummySpec{Attrs: attrs("dummy0")}) }}},
	}
}

// checkDiscards shows that packets routed to a link are counted there and go nowhere,
// while the link's own address answers.
func checkDiscards(t *testing.T, spec link.Spec) {
	ns := newNS(t, "a")
	l := create(t, ns, spec, nil)
	own := newEndpoint(t, l, "192.0.2.1/24")
	checkReachable(t, own, own)
	lo := listen(t, find(t, ns, "lo"), mustAddr("127.0.0.1"))
	nowhere := &endpoint{link: l, ns: ns, addr: mustAddr("192.0.2.2")}
	must(t, l.AddNeighbor(nowhere.addr, link.MAC{2, 9}))
	c := own.dialUDP(t, nowhere)
	defer c.Close()
	before := discarded(t, l)
	for range 10 {
		_, err := c.Write([]byte("gone"))
		must(t, err)
	}
	checkReachable(t, lo, lo) // the host could send at the same time
	for until := time.Now().Add(timeout); discarded(t, l) < before+10; {
		if time.Now().After(until) {
			t.Fatalf("the link counted %d of 10 packets", discarded(t, l)-before)
		}
	}
}

// discarded returns the number of packets that a link took, including dropped ones.
func discarded(t *testing.T, l *link.Link) uint64 {
	t.Helper()
	h, err := link.Handle(l.NS())
	must(t, err)
	defer h.Close()
	nl, err := h.LinkByIndex(l.Index())
	must(t, err)
	s := nl.Attrs().Statistics
	return max(s.TxPackets, s.RxDropped, s.RxPackets)
}
