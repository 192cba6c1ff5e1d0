package link_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"

	"cleat/link"

	"golang.org/x/sys/unix"
)

// arpRoundsEnv overrides the number of rounds of TestIPvlanL2AnswersARP.
const (
	arpRoundsEnv = "CLEAT_ARP_ROUNDS"
	arpRounds    = 200
)

// arpCount counts the outcomes of resolving one address many times.
type arpCount struct {
	asked, answered, retried int
	requests, replies        int // ARP packets sent and received by the resolving end
}

// TestIPvlanL2AnswersARP resolves the Ethernet address of an ipvlan device in mode l2
// many times, each time from an empty neighbour table: from a neighbour on the same
// parent, from outside, and to the outside. It shows whether ARP on ipvlan is reliable.
func TestIPvlanL2AnswersARP(t *testing.T) {
	requireKind(t, "ipvlan")
	rounds := arpRounds
	if s := os.Getenv(arpRoundsEnv); s != "" {
		var err error
		rounds, err = strconv.Atoi(s)
		must(t, err)
	}
	o := newLAN(t)
	a, b := o.ipvlans(t, link.IPvlanL2, link.IPvlanBridge)
	ways := []struct {
		name     string
		from, to *endpoint
	}{
		{"between neighbours", a, b},
		{"from outside", o.outside, a},
		{"to the outside", a, o.outside},
	}
	var total arpCount
	for _, w := range ways {
		c := askARP(t, w.from, w.to, rounds)
		t.Logf("%s: %d asked, %d answered, %d datagrams sent again, %d requests, %d replies", w.name, c.asked, c.answered, c.retried, c.requests, c.replies)
		if c.answered < c.asked {
			t.Errorf("%s: %d of %d addresses were not resolved", w.name, c.asked-c.answered, c.asked)
		}
		total.asked += c.asked
		total.answered += c.answered
		total.retried += c.retried
		total.requests += c.requests
		total.replies += c.replies
	}
	t.Logf("ARP on ipvlan l2: of %d addresses asked for, between neighbours, from outside and to the outside, %d were resolved, with %d requests for %d replies and %d datagrams sent again.",
		total.asked, total.answered, total.requests, total.replies, total.retried)
}

// askARP removes the neighbour entry and resolves the address again, many times.
func askARP(t *testing.T, from, to *endpoint, rounds int) arpCount {
	t.Helper()
	packets := startCapture(t, from.link)
	c := from.dialUDP(t, to)
	defer c.Close()
	var out arpCount
	for i := range rounds {
		deleteNeighbor(t, from.link, to)
		deleteNeighbor(t, to.link, from)
		out.asked++
		sent, err := sendUntilEchoed(c, fmt.Appendf(nil, "arp %p %d", c, i))
		if err != nil {
			continue
		}
		if _, ok, err := from.link.Neighbor(to.addr); err != nil || !ok {
			t.Fatalf("an echo arrived from an unresolved neighbour: %v", err)
		}
		out.answered++
		out.retried += sent - 1
		requests, replies := packets.drainARP()
		out.requests += requests
		out.replies += replies
	}
	return out
}

// deleteNeighbor removes a neighbour entry, if there is one.
func deleteNeighbor(t *testing.T, l *link.Link, e *endpoint) {
	t.Helper()
	if err := l.DeleteNeighbor(e.addr); err != nil && !errors.Is(err, unix.ENOENT) {
		t.Fatal(err)
	}
}

// capture receives every packet of a link.
type capture struct{ fd int }

func startCapture(t *testing.T, l *link.Link) capture {
	t.Helper()
	protocol := networkOrder(unix.ETH_P_ALL)
	var fd int
	must(t, l.NS().Do(func() error {
		var err error
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(protocol))
		return err
	}))
	t.Cleanup(func() { unix.Close(fd) })
	must(t, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: l.Index()}))
	return capture{fd}
}

// each calls f with every packet that arrived since the last call.
func (w capture) each(f func(from *unix.SockaddrLinklayer, packet []byte)) {
	buf := make([]byte, 1<<17)
	for {
		n, from, err := unix.Recvfrom(w.fd, buf, 0)
		if err != nil {
			return
		}
		if ll, ok := from.(*unix.SockaddrLinklayer); ok {
			f(ll, buf[:n])
		}
	}
}

// longest returns the size of the longest packet of a type (PACKET_HOST: received),
// without its Ethernet header.
func (w capture) longest(packetType uint8) int {
	most := 0
	w.each(func(from *unix.SockaddrLinklayer, packet []byte) {
		if from.Pkttype == packetType {
			most = max(most, len(packet))
		}
	})
	return most
}

// drainARP counts the requests that were sent and the replies that were received.
func (w capture) drainARP() (requests, replies int) {
	const (
		request, reply = 1, 2 // ar_op (RFC 826)
		operation      = 6    // its offset
	)
	w.each(func(from *unix.SockaddrLinklayer, packet []byte) {
		if from.Protocol != networkOrder(unix.ETH_P_ARP) || len(packet) < operation+2 {
			return
		}
		switch op := binary.BigEndian.Uint16(packet[operation:]); {
		case op == request && from.Pkttype == unix.PACKET_OUTGOING:
			requests++
		case op == reply && from.Pkttype == unix.PACKET_HOST:
			replies++
		}
	})
	return requests, replies
}

func networkOrder(n uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n))
}
