package usernet

import (
	"io"
	"net/netip"
	"os"
	"time"

	"cleat/internal/ledger"
	"cleat/packet"
	"cleat/usernet/lan"
)

// Config configures a Stack. The zero value of each optional field is a sensible default.
type Config struct {
	// TUN is the guest's device in non-blocking mode, as IFF_TUN|IFF_NO_PI|IFF_VNET_HDR
	// with a virtio header of 12 bytes. It may also be any socket that keeps message
	// boundaries and carries the same bytes (tests use a socketpair). The Stack does not
	// close it.
	TUN *os.File
	// Ethernet makes TUN a TAP device (IFF_TAP instead of IFF_TUN); nil: it is a TUN.
	Ethernet *Ethernet
	// Queues are further queues of the same device (IFF_MULTI_QUEUE), in the same mode.
	// Each has a thread, which moves bytes while there are several connections. Until
	// then the queue is detached.
	Queues []*os.File
	// Gate lets TCP connections bypass the device; nil: none do.
	Gate *Gate
	// MTU of the device in bytes, 576 to 65520; with IPv6 at least 1280.
	MTU int

	// Guest4 and Guest6 are the guest's addresses. Packets with another source are
	// dropped and counted, except as Ethernet says. An invalid address disables its family.
	Guest4, Guest6 netip.Addr
	// Gateway4 and Gateway6 are our own addresses on the link. They answer pings and are
	// the source of ICMP errors. They also stand for clients whose own address would mean
	// something else in the guest (loopback, link-local or the guest's own), and for those
	// of the other address family.
	Gateway4, Gateway6 netip.Addr
	// ClientAliases replaces the gateway's address for such clients: it maps a client's
	// address to one by which the guest reaches the client.
	ClientAliases map[netip.Addr]netip.Addr

	// Policy decides about new flows; nil: outbound flows are refused, inbound ones allowed.
	Policy Policy
	// Hook is called after Policy; nil: no hook.
	Hook Hook

	// Outbound4 and Outbound6 are the source addresses of host sockets, and
	// OutboundInterface is the link they are bound to. Zero: the host's routes decide.
	Outbound4, Outbound6 netip.Addr
	OutboundInterface    string

	// Pcap receives all packets of the device in pcap format; nil: none. New fails if the
	// first Write, of the file's header, fails. A later error ends the capture, and the
	// network goes on.
	Pcap io.Writer

	Limits Limits
	// Ledger is charged for what the guest causes. Other parts of the process may share
	// it. nil: the Stack makes its own (Limits.NewLedger).
	Ledger *ledger.Ledger
}

// Ethernet is the link layer of a TAP device.
type Ethernet struct {
	// Guest is the guest's address. Frames from another address change it.
	Guest packet.MAC
	// LAN configures the other stations. Its addresses, gateways and MTU are those of Config,
	// with the prefix lengths here. If the guest configures itself by router advertisements, it
	// may use every address of its prefix, and Forwards lead to the last one that it has used.
	LAN lan.Config
}

// Limits bound what a hostile guest can cost. Zero fields take the default.
type Limits struct {
	Flows       int           // open flows of all protocols; default 65536, or fewer if Descriptors is less; a SYN beyond is answered with RST
	BufferBytes int           // packet memory; default 64 MiB
	Descriptors int           // open files; default and maximum: what RLIMIT_NOFILE leaves, less a reserve of 64
	MemoryBytes int           // memory apart from BufferBytes; default 128 MiB
	Goroutines  int           // of the resolver, of hooks and of their connections; default 12288
	UDPIdle     time.Duration // timeout of a flow with datagrams in both directions; default 120 s (nf_conntrack_udp_timeout_stream)
	UDPReply    time.Duration // timeout of a flow without an answer; default 30 s (nf_conntrack_udp_timeout)
	TCPConnect  time.Duration // timeout of the host's connect; default: the host kernel's own
}

// Stats are counters since the start.
type Stats struct {
	TunInPackets    uint64            `json:"tun_in_packets"`  // written to the device, toward the guest
	TunOutPackets   uint64            `json:"tun_out_packets"` // read from the device
	TunInBytes      uint64            `json:"tun_in_bytes"`    // with headers
	TunOutBytes     uint64            `json:"tun_out_bytes"`
	TCPFlows        uint64            `json:"tcp_flows"`         // opened
	Spliced         uint64            `json:"spliced"`           // TCP connections whose bytes bypassed the device
	SplicedOutBytes uint64            `json:"spliced_out_bytes"` // payload of spliced connections, from the guest
	SplicedInBytes  uint64            `json:"spliced_in_bytes"`
	Unspliced       map[string]uint64 `json:"unspliced,omitempty"` // TCP connections that took the device although there is a gate, by reason
	Returned        uint64            `json:"returned"`            // packets of spliced connections that came to the device, and were written back to it
	Intruders       uint64            `json:"intruders"`           // connections at the gate that belong to no SYN of ours, reset
	UDPFlows        uint64            `json:"udp_flows"`
	ICMPFlows       uint64            `json:"icmp_flows"`
	Open            int               `json:"open"`        // flows that are open now
	Refused         uint64            `json:"refused"`     // flows that Policy or Hook refused or dropped
	Malformed       uint64            `json:"malformed"`   // packets that can't be parsed
	Spoofed         uint64            `json:"spoofed"`     // packets whose source is not the guest's address
	OverLimit       uint64            `json:"over_limit"`  // flows and packets rejected because of Limits or a full queue
	Retransmits     uint64            `json:"retransmits"` // segments sent to the guest again
	Dropped         uint64            `json:"dropped"`     // packets to the guest that the device did not take
	HandedOver      uint64            `json:"handed_over"` // packets from the guest that came to another queue than their flow's
	Unsupported     uint64            `json:"unsupported"` // packets of protocols or with options that can't be carried
}
