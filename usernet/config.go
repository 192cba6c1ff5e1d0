package usernet

import (
	"io"
	"net/netip"
	"os"
	"time"

	"cleat/internal/ledger"
)

// Config says what a Stack works on. The zero value of each optional field is a
// sensible default.
type Config struct {
	// TUN is the guest's device in non-blocking mode, as IFF_TUN|IFF_NO_PI|
	// IFF_VNET_HDR with a virtio header of 12 bytes, or any socket that keeps
	// message boundaries and carries the same bytes (tests use a socketpair).
	// The Stack uses it and leaves closing to the caller.
	TUN *os.File
	// Queues are further queues of the same device (IFF_MULTI_QUEUE), in the
	// same mode. Each brings a thread, which moves bytes while there are several
	// connections; until then the queue is detached.
	Queues []*os.File
	// Gate lets TCP connections bypass the device; nil: none does.
	Gate *Gate
	// MTU of the device in bytes, 576 to 65520; IPv6 needs 1280.
	MTU int

	// Guest4 and Guest6 are the guest's addresses. Packets from other sources
	// are dropped and counted. An invalid address switches the family off.
	Guest4, Guest6 netip.Addr
	// Gateway4 and Gateway6 are our own addresses on the link. They answer pings
	// and stand as source of ICMP errors and of clients whose own address would
	// mean something else inside (loopback; the guest's own).
	Gateway4, Gateway6 netip.Addr
	// Shown stand, in place of the gateway, for clients whose own address would
	// mean something else inside: addresses that lead back to them, by theirs.
	ClientAliases map[netip.Addr]netip.Addr

	// Policy judges new flows; nil: all are refused.
	Policy Policy
	// Hook is asked after Policy; nil: nobody.
	Hook Hook

	// Outbound4 and Outbound6 are source addresses of host sockets, and
	// OutboundInterface the link they are bound to; zero: the host's routes decide.
	Outbound4, Outbound6 netip.Addr
	OutboundInterface    string

	// Pcap receives all packets of the device in pcap format; nil: none.
	Pcap io.Writer

	Limits Limits
	// Ledger is charged for what the guest causes. Other parts of the helper may share it.
	// nil: the Stack has one of its own (Limits.NewLedger).
	Ledger *ledger.Ledger
}

// Limits bound what a hostile guest can cost. Zero fields take the default.
type Limits struct {
	Flows       int           // at once, all protocols; default 65536 less what Descriptors forbids; a SYN beyond is answered with RST
	BufferBytes int           // packet memory; default 64 MiB
	Descriptors int           // open files; default (and at most) what RLIMIT_NOFILE leaves, less a reserve of 64
	MemoryBytes int           // memory for all that is not a packet in BufferBytes; default 128 MiB
	Goroutines  int           // for the resolver, hooks and connections of theirs; default 12288
	UDPIdle     time.Duration // a flow that has seen both directions; default 120 s (nf_conntrack_udp_timeout_stream)
	UDPReply    time.Duration // one that has not; default 30 s (nf_conntrack_udp_timeout)
	TCPConnect  time.Duration // until the host's connect gives up; default as long as the host's kernel
}

// Stats are counters since the start.
type Stats struct {
	TunInPackets    uint64            `json:"tun_in_packets"`  // written to the device, toward the guest
	TunOutPackets   uint64            `json:"tun_out_packets"` // read from it
	TunInBytes      uint64            `json:"tun_in_bytes"`    // with headers
	TunOutBytes     uint64            `json:"tun_out_bytes"`
	TCPFlows        uint64            `json:"tcp_flows"`         // begun
	Spliced         uint64            `json:"spliced"`           // those of TCP whose bytes did not cross the device
	SplicedOutBytes uint64            `json:"spliced_out_bytes"` // their payload, from the guest
	SplicedInBytes  uint64            `json:"spliced_in_bytes"`
	Unspliced       map[string]uint64 `json:"unspliced,omitempty"` // those of TCP that took the device where others don't, by why
	Returned        uint64            `json:"returned"`            // their packets that came by the device all the same
	Intruders       uint64            `json:"intruders"`           // connections led to the gate that nobody let through, reset
	UDPFlows        uint64            `json:"udp_flows"`
	ICMPFlows       uint64            `json:"icmp_flows"`
	Open            int               `json:"open"`        // flows now
	Refused         uint64            `json:"refused"`     // flows that the policy refused or dropped
	Malformed       uint64            `json:"malformed"`   // packets that parse as nothing
	Spoofed         uint64            `json:"spoofed"`     // packets with a source that is not the guest's
	OverLimit       uint64            `json:"over_limit"`  // flows or packets turned away by Limits
	Retransmits     uint64            `json:"retransmits"` // segments sent to the guest again
	Dropped         uint64            `json:"dropped"`     // packets to the guest that the device did not take
	HandedOver      uint64            `json:"handed_over"` // packets from the guest that came to another queue than their flow's
	Unsupported     uint64            `json:"unsupported"` // packets that can't be carried
}
