package attach_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cleat/link"
	"cleat/network/attach"
	"cleat/network/segment"
	"cleat/network/segment/segmenttest"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestAnnounces checks that attaching announces each address to the segment.
func TestAnnounces(t *testing.T) {
	for kind, parent := range map[string]string{"bridge": "br0", "macvlan": "nic", "ipvlan": "nic", "bridge later": "br0", "macvlan later": "nic"} {
		t.Run(kind, func(t *testing.T) {
			kind, later := strings.CutSuffix(kind, " later")
			needKinds(t, kind)
			tb := newTestbed(t)
			if later {
				tb.meanwhile = &sync.WaitGroup{}
				defer tb.meanwhile.Wait()
			}
			ear := find(t, tb.outside, "wire")
			if kind == "bridge" {
				prepBridge(t, tb, nil)
				ear = find(t, tb.host, parent)
			}
			heard := map[uint16]*segment.Socket{}
			for _, proto := range []uint16{unix.ETH_P_ARP, unix.ETH_P_IPV6} {
				s, err := segment.Open(segmenttest.At(ear, nil), proto, nil)
				must(t, err)
				defer s.Close()
				must(t, s.Join(link.MAC{0x33, 0x33, 0, 0, 0, 1})) // the group of all nodes, to which advertisements are sent
				heard[proto] = s
			}
			ips := prefixes("198.51.100.7/24", "2001:db8::7/64")
			_, err := tb.attach(attach.Spec{Kind: kind, Parent: parent, Addresses: ips}, nil)
			must(t, err)
			expectPacket(t, heard[unix.ETH_P_ARP], 24, ips[0].Addr())  // the target address (RFC 826)
			expectPacket(t, heard[unix.ETH_P_IPV6], 48, ips[1].Addr()) // the target address (RFC 4861 section 4.4)
		})
	}
}

// TestUnannounced checks that addresses that nobody had before are not announced.
func TestUnannounced(t *testing.T) {
	tb := newTestbed(t)
	for _, unannounced := range []bool{false, true} {
		cfg := tb.config()
		cfg.Unannounced = unannounced
		must(t, tb.onHost(func() error {
			got, err := attach.Preview(t.Context(), cfg, "web", attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("198.51.100.7/24")})
			if err != nil {
				return err
			}
			if slices.ContainsFunc(got.Steps, func(s attach.Step) bool { _, is := s.(attach.Announce); return is }) == unannounced {
				t.Errorf("unannounced %v: steps %v", unannounced, got.Steps)
			}
			return nil
		}))
	}
}

// expectPacket waits for a packet with addr at an offset.
func expectPacket(t *testing.T, s *segment.Socket, at int, addr netip.Addr) {
	t.Helper()
	buf := make([]byte, 2048)
	for until := time.Now().Add(5 * time.Second); ; {
		n, _, err := s.Receive(t.Context(), buf, until)
		if err != nil {
			t.Fatalf("no packet with %s: %v", addr, err)
		}
		want := addr.AsSlice()
		if n >= at+len(want) && string(buf[at:at+len(want)]) == string(want) {
			return
		}
	}
}

// TestDuplicateAddress attaches with an address that another host on the segment has:
// that is refused, the error names the host's Ethernet address, and the old state is
// restored.
func TestDuplicateAddress(t *testing.T) {
	for _, ip := range []string{"198.51.100.7/24", "2001:db8::7/64"} {
		t.Run(ip, func(t *testing.T) {
			needKinds(t, "macvlan")
			tb := newTestbed(t)
			wire := find(t, tb.outside, "wire")
			must(t, wire.AddAddr(netip.MustParsePrefix(ip)))
			addr := netip.MustParsePrefix(ip).Addr()
			waitRoute(t, tb.outside, netip.PrefixFrom(addr, addr.BitLen()).String()) // duplicate address detection is complete
			tb.repair()
			before := tb.snapshot()
			spec := attach.Spec{Kind: "macvlan", Parent: "nic", Addresses: prefixes("198.51.100.6/24", ip), CheckDuplicate: attach.CheckFast}
			_, err := tb.attach(spec, nil)
			var taken *attach.TakenError
			mac := segmenttest.MAC(t, wire).String()
			if !errors.As(err, &taken) || taken.Name != spec.Addresses[1].Addr().String() || !strings.Contains(taken.Owner, mac) {
				t.Errorf("got %v, want that %s has the address", err, mac)
			}
			tb.unchanged(before, "refused")

			spec.CheckDuplicate = attach.CheckDefault // which does not check: the parent is a veth, not a card
			_, err = tb.attach(spec, nil)
			must(t, err)
		})
	}
}

// TestDuplicateCheckInterrupted checks that the duplicate address check ends when the
// context does.
func TestDuplicateCheckInterrupted(t *testing.T) {
	needKinds(t, "macvlan")
	tb := newTestbed(t)
	tb.repair()
	before := tb.snapshot()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	err := tb.onHost(func() error {
		_, err := attach.Attach(ctx, tb.config(), "web", attach.Spec{Kind: "macvlan", Parent: "nic", Addresses: prefixes("198.51.100.7/24"), CheckDuplicate: attach.CheckThorough})
		return err
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	tb.unchanged(before, "interrupted")
}

// TestPhysical checks which kinds of device count as leading out of the machine, where
// addresses are checked by default.
func TestPhysical(t *testing.T) {
	for kind, want := range map[string]bool{"device": true, "bond": true, "veth": false, "bridge": false} {
		l := netlink.Link(&netlink.GenericLink{LinkType: kind})
		if got := attach.IsPhysical(l); got != want {
			t.Errorf("%s: %v", kind, got)
		}
	}
}
