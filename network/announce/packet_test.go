package announce

import (
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"
	"time"

	"cleat/link"
)

var (
	here   = link.MAC{2, 0, 0x5e, 0x10, 0, 1}
	there  = link.MAC{2, 0, 0x5e, 0x10, 0, 2}
	four   = netip.MustParseAddr("192.0.2.10")
	six    = netip.MustParseAddr("2001:db8::10")
	random = nonce{1, 2, 3, 4, 5, 6}
)

// TestPackets compares packets with bytes written down from the RFCs.
func TestPackets(t *testing.T) {
	for name, c := range map[string]struct {
		got  []byte
		want string
	}{
		"ARP probe": {arpProbe(here, four),
			"0001 0800 06 04 0001  02005e100001 00000000  000000000000 c000020a"},
		"ARP announcement": {arpAnnouncement(here, four),
			"0001 0800 06 04 0001  02005e100001 c000020a  000000000000 c000020a"},
		"solicitation": {ndProbe(six, random),
			"60000000 0020 3a ff  00000000000000000000000000000000 ff0200000000000000000001ff000010" +
				"87 00 35ba 00000000  20010db8000000000000000000000010  0e 01 010203040506"},
		"advertisement": {ndAnnouncement(here, six, false),
			"60000000 0020 3a ff  20010db8000000000000000000000010 ff020000000000000000000000000001" +
				"88 00 9afc 20000000  20010db8000000000000000000000010  02 01 02005e100001"},
		"advertisement of a router": {ndAnnouncement(here, six, true),
			"60000000 0020 3a ff  20010db8000000000000000000000010 ff020000000000000000000000000001" +
				"88 00 1afc a0000000  20010db8000000000000000000000010  02 01 02005e100001"},
	} {
		if got, want := hex.EncodeToString(c.got), strings.ReplaceAll(c.want, " ", ""); got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, want)
		}
	}
	if got := groupMAC(solicitedNode(six)); got != (link.MAC{0x33, 0x33, 0xff, 0, 0, 0x10}) {
		t.Errorf("the group's Ethernet address is %s", got)
	}
}

// TestConflictIn distinguishes packets of others from our own.
func TestConflictIn(t *testing.T) {
	request := func(from link.MAC, sender, target netip.Addr) []byte {
		return arp{op: arpRequest, senderMAC: from, sender: sender, target: target}.bytes()
	}
	reply := func(from link.MAC, sender netip.Addr) []byte {
		return arp{op: arpReply, senderMAC: from, sender: sender, targetMAC: here, target: netip.IPv4Unspecified()}.bytes()
	}
	other4, other6 := netip.MustParseAddr("192.0.2.11"), netip.MustParseAddr("2001:db8::11")
	without := ndMessage(netip.IPv6Unspecified(), solicitedNode(six), ndSolicitation, 0, six, 200, nonce{}) // an unknown option
	for name, c := range map[string]struct {
		addr     netip.Addr
		ours     bool
		packet   []byte
		from     link.MAC
		conflict link.MAC // zero: none
	}{
		"reply":                            {four, false, reply(there, four), there, there},
		"request for another address":      {four, false, request(there, four, other4), there, there},
		"announcement":                     {four, false, arpAnnouncement(there, four), there, there},
		"probe":                            {four, false, arpProbe(there, four), there, there},
		"our probe, sent back":             {four, false, arpProbe(here, four), here, link.MAC{}},
		"reply from our MAC":               {four, false, reply(here, four), here, here},
		"our own reply":                    {four, true, reply(here, four), here, link.MAC{}},
		"another's reply for our address":  {four, true, reply(there, four), there, there},
		"reply for another address":        {four, false, reply(there, other4), there, link.MAC{}},
		"request for the address":          {four, false, request(there, other4, four), there, link.MAC{}},
		"probe for another address":        {four, false, arpProbe(there, other4), there, link.MAC{}},
		"advertisement":                    {six, false, ndAnnouncement(there, six, false), there, there},
		"advertisement of another address": {six, false, ndAnnouncement(there, other6, false), there, link.MAC{}},
		"our own advertisement":            {six, true, ndAnnouncement(here, six, false), here, link.MAC{}},
		"advertisement from our MAC":       {six, false, ndAnnouncement(here, six, false), here, here},
		"our solicitation, sent back":      {six, false, ndProbe(six, random), here, link.MAC{}},
		"solicitation of a sibling":        {six, false, ndProbe(six, nonce{9}), here, here},
		"solicitation without a nonce":     {six, false, without, there, there},
		"address resolution":               {six, false, ndMessage(other6, solicitedNode(six), ndSolicitation, 0, six, ndOptionNonce, nonce{9}), there, link.MAC{}},
		"advertisement without a MAC":      {six, false, ndMessage(six, netip.IPv6LinkLocalAllNodes(), ndAdvertisement, 0, six, 200, there), there, there},
	} {
		got := query{addr: c.addr, mac: here, own: c.ours, nonce: random}.conflictIn(c.packet, c.from)
		switch {
		case (got != nil) != (c.conflict != link.MAC{}):
			t.Errorf("%s: %v", name, got)
		case got != nil && (got.MAC != c.conflict || got.Addr != c.addr):
			t.Errorf("%s: %v, want %s", name, got, c.conflict)
		}
	}
}

// parseND rejects what a router has forwarded, and invalid messages.
func TestParseNDRejects(t *testing.T) {
	good := ndAnnouncement(there, six, false)
	if _, ok := parseND(good); !ok {
		t.Fatal("a valid message is rejected")
	}
	for name, change := range map[string]func([]byte){
		"hop limit":     func(b []byte) { b[7] = 254 },
		"checksum":      func(b []byte) { b[42] ^= 1 },
		"option length": func(b []byte) { b[40+ndBytes+1] = 0 },
		"code":          func(b []byte) { b[41] = 1; b[43]-- },
	} {
		b := append([]byte(nil), good...)
		change(b)
		if _, ok := parseND(b); ok {
			t.Errorf("%s: accepted", name)
		}
	}
}

func FuzzConflictIn(f *testing.F) {
	f.Add(arpProbe(there, four))
	f.Add(ndProbe(six, random))
	f.Add(ndAnnouncement(there, six, false))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, a := range []netip.Addr{four, six} {
			if c := (query{addr: a, mac: here, nonce: random}).conflictIn(b, there); c != nil && c.Addr != a {
				t.Errorf("conflict about %s", c.Addr)
			}
		}
	})
}

func TestPauses(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		timing Timing
		chance float64
		want   []time.Duration
	}{
		"RFC 5227, minimum": {rfcTiming(four), 0, []time.Duration{0, s, s, 2 * s}},
		"RFC 5227, average": {rfcTiming(four), 0.5, []time.Duration{s / 2, 3 * s / 2, 3 * s / 2, 2 * s}},
		"RFC 4862":          {rfcTiming(six), 0.5, []time.Duration{s / 2, s}},
	} {
		got := c.timing.pauses(func() float64 { return c.chance })
		if len(got) != len(c.want) {
			t.Errorf("%s: %v", name, got)
			continue
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("%s: %v, want %v", name, got, c.want)
			}
		}
	}
	total := time.Duration(0)
	for _, d := range Fast().pauses(func() float64 { return 0.999999 }) {
		total += d
	}
	if total > 350*time.Millisecond {
		t.Errorf("the fast check takes up to %s", total)
	}
}
