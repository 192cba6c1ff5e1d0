package firewall

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"cleat/internal/nlsock"
	"cleat/netns"
	"cleat/packet"

	"golang.org/x/sys/unix"
)

// Tracked is a connection that the kernel tracks.
type Tracked struct {
	ID       uint32     // the kernel's; it may give an ID to another connection later
	Client   netip.Addr // before any translation
	Server   netip.Addr // after it: the address that answers
	Protocol packet.Protocol
	Port     uint16 // of the server; 0 for protocols without ports
	// Counted reports whether the kernel counts the connection's packets. It does if net.netfilter.nf_conntrack_acct
	// was set when the connection began.
	Counted           bool
	Requests, Answers uint64 // bytes from and to the client, with IP headers
	Packets           uint64 // both ways
}

// Parts of an attribute CTA_COUNTERS_ORIG or CTA_COUNTERS_REPLY (include/uapi/linux/netfilter/nfnetlink_conntrack.h).
const (
	ctaCountersOrig, ctaCountersReply = 9, 10
	ctaCountersPackets                = 1
	ctaCountersBytes                  = 2
)

// EachTracked calls each for every connection that a network namespace tracks. The kernel needs up to 15 ms to
// search its table, and about 1 µs for each connection.
func EachTracked(ns *netns.NS, each func(Tracked)) error {
	k, err := open(ns)
	if err != nil {
		return err
	}
	defer k.close()
	n, err := k.countConnections()
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) || err == nil && n == 0 {
		return nil // the kernel tracks no connections
	}
	if err == nil {
		err = k.dumpConnections(filter{family: unix.NFPROTO_UNSPEC}, func(c connection) { each(c.tracked()) })
	}
	if err != nil {
		return fmt.Errorf("list connections in %s: %w", ns, err)
	}
	return nil
}

func (c connection) tracked() Tracked {
	t := Tracked{Client: c.original.src, Server: c.reply.src, Protocol: c.original.protocol, Port: c.reply.sport}
	for kind, data := range attributes(c.body) {
		switch kind {
		case ctaID:
			t.ID = number(data)
		case ctaCountersOrig:
			t.Counted = true
			t.Requests = t.count(data)
		case ctaCountersReply:
			t.Answers = t.count(data)
		}
	}
	return t
}

// count adds the packets of a direction and returns its bytes.
func (t *Tracked) count(counters []byte) (size uint64) {
	for kind, data := range nlsock.Attributes(counters) {
		switch {
		case len(data) != 8:
		case kind == ctaCountersPackets:
			t.Packets += binary.BigEndian.Uint64(data)
		case kind == ctaCountersBytes:
			size = binary.BigEndian.Uint64(data)
		}
	}
	return size
}
