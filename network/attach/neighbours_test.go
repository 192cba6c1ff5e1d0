package attach_test

import (
	"context"
	"errors"
	"net/netip"
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

// Whoever is on the segment hears of each address at once.
func TestAnnounces(t *testing.T) {
	for kind, parent := range map[string]string{"bridge": "br0", "macvlan": "nic", "ipvlan": "nic", "bridge later": "br0", "macvlan later": "nic"} {
		t.Run(kind, func(t *testing.T) {
			kind, later := strings.CutSuffix(kind, " later")
			need(t, kind)
			w := newWorld(t)
			if later {
				w.meanwhile = &sync.WaitGroup{}
				defer w.meanwhile.Wait()
			}
			ear := find(t, w.outside, "wire")
			if kind == "bridge" {
				haveBridge(t, w, nil)
				ear = find(t, w.host, parent)
			}
			heard := map[uint16]*segment.Socket{}
			for _, proto := range []uint16{unix.ETH_P_ARP, unix.ETH_P_IPV6} {
				s, err := segment.Open(segment.Of(ear, nil), proto, nil)
				must(t, err)
				defer s.Close()
				must(t, s.Join(link.MAC{0x33, 0x33, 0, 0, 0, 1})) // all nodes
				heard[proto] = s
			}
			ips := prefixes("198.51.100.7/24", "2001:db8::7/64")
			_, err := w.attach(attach.Spec{Kind: kind, Parent: parent, Addresses: ips}, nil)
			must(t, err)
			hears(t, heard[unix.ETH_P_ARP], 24, ips[0].Addr())  // the target (RFC 826)
			hears(t, heard[unix.ETH_P_IPV6], 48, ips[1].Addr()) // the target (RFC 4861 section 4.4)
		})
	}
}

// hears waits for a packet that has an address at an offset.
func hears(t *testing.T, s *segment.Socket, at int, addr netip.Addr) {
	t.Helper()
	buf := make([]byte, 2048)
	for until := time.Now().Add(5 * time.Second); ; {
		n, _, err := s.Receive(t.Context(), buf, until)
		if err != nil {
			t.Fatalf("nothing is heard of %s: %v", addr, err)
		}
		want := addr.AsSlice()
		if n >= at+len(want) && string(buf[at:at+len(want)]) == string(want) {
			return
		}
	}
}

// An address that somebody else has is refused, by who has it, and everything is as
// it was.
func TestDuplicateAddress(t *testing.T) {
	for _, ip := range []string{"198.51.100.7/24", "2001:db8::7/64"} {
		t.Run(ip, func(t *testing.T) {
			need(t, "macvlan")
			w := newWorld(t)
			wire := find(t, w.outside, "wire")
			must(t, wire.AddAddr(netip.MustParsePrefix(ip)))
			segmenttest.Eventually(t, "it is settled", func() bool {
				flags, there, err := segment.Address(segment.Of(wire, nil), netip.MustParsePrefix(ip).Addr())
				return err == nil && there && flags&unix.IFA_F_TENTATIVE == 0
			})
			w.repair()
			before := w.snapshot()
			want := attach.Spec{Kind: "macvlan", Parent: "nic", Addresses: prefixes("198.51.100.6/24", ip), CheckDuplicate: attach.CheckFast}
			_, err := w.attach(want, nil)
			var taken *attach.TakenError
			mac := segmenttest.MAC(t, wire).String()
			if !errors.As(err, &taken) || taken.Name != want.Addresses[1].Addr().String() || !strings.Contains(taken.Owner, mac) {
				t.Errorf("got %v, want that %s has it", err, mac)
			}
			w.unchanged(before, "refused")

			want.CheckDuplicate = attach.CheckDefault // the parent is a pair, not a card
			_, err = w.attach(want, nil)
			must(t, err)
		})
	}
}

// Asking can be interrupted.
func TestCheckInterrupted(t *testing.T) {
	need(t, "macvlan")
	w := newWorld(t)
	w.repair()
	before := w.snapshot()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	err := w.do(func() error {
		_, err := attach.Attach(ctx, w.config(), "web", attach.Spec{Kind: "macvlan", Parent: "nic", Addresses: prefixes("198.51.100.7/24"), CheckDuplicate: attach.CheckThorough})
		return err
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	w.unchanged(before, "interrupted")
}

// What leads out of the machine is asked by default.
func TestPhysical(t *testing.T) {
	for kind, want := range map[string]bool{"device": true, "bond": true, "veth": false, "bridge": false} {
		l := netlink.Link(&netlink.GenericLink{LinkType: kind})
		if got := attach.IsPhysical(l); got != want {
			t.Errorf("%s: %v", kind, got)
		}
	}
}
