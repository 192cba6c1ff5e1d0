package probe

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"

	"cleat/packet"

	"golang.org/x/net/bpf"
)

// number is a random number by which a host recognizes answers.
type number [8]byte

// message is a hello or a trial as it is sent.
type message struct {
	Magic    [8]byte // the last byte is the version
	Kind     kind
	Received families // of trials that the sender has received lately
	Own      number   // of the sender for the receiver
	Echo     number   // what the sender last got from the receiver
}

type kind uint8

const (
	hello kind = iota + 1
	trial
	// Nodes ignore kinds that they don't know. These are of later versions of the program:
	sized  // a datagram of a certain size
	fits   // the answer: it has arrived
	check  // a part of a frame in an encapsulated packet
	intact // the answer: it has arrived as it was sent
)

var magic = [8]byte{'c', 'l', 'e', 'a', 't', 'p', 'r', 1}

// messageBytes is the size of a message.
var messageBytes = binary.Size(message{})

// families are address families.
type families uint8

const (
	has4 families = 1 << iota
	has6
)

func familyOf(a netip.Addr) families {
	if a.Is4() {
		return has4
	}
	return has6
}

func (m message) encode() []byte {
	m.Magic = magic
	var b bytes.Buffer
	_ = binary.Write(&b, binary.BigEndian, m) // it has a fixed size
	return b.Bytes()
}

// parse returns a message. ok is false if b is none of a known version.
func parse(b []byte) (m message, ok bool) {
	_, err := binary.Decode(b, binary.BigEndian, &m)
	return m, err == nil && m.Magic == magic && m.Kind >= hello && m.Kind <= intact
}

// trialTTL is the TTL of trials: nobody is to forward them.
const trialTTL = 1

// trialPacket returns a trial as an IP packet.
func trialPacket(w Way, port uint16, m message) []byte {
	payload := m.encode()
	ip := packet.IP{Src: w.From, Dst: w.To, Protocol: packet.UDP, TTL: trialTTL, DontFragment: true}
	head := packet.IPBytes(w.From)
	b := make([]byte, head+packet.UDPBytes+len(payload))
	ip.Put(b, packet.UDPBytes+len(payload))
	datagram := b[head:]
	packet.PutUDP(datagram, port, port, len(payload))
	copy(datagram[packet.UDPBytes:], payload)
	sum := packet.TransportChecksum(w.From, w.To, packet.UDP, datagram)
	binary.BigEndian.PutUint16(datagram[6:], sum)
	return b
}

// parseTrial returns what a packet has, and its source.
func parseTrial(b []byte, port uint16) (m message, from netip.Addr, ok bool) {
	var ip packet.IP
	if packet.ParseIP(b, &ip) != nil || ip.Protocol != packet.UDP || ip.IsFragment() {
		return m, from, false
	}
	var u packet.UDPHeader
	if packet.ParseUDP(ip.Payload, &u) != nil || u.DstPort != port {
		return m, from, false
	}
	m, ok = parse(u.Payload)
	return m, ip.Src, ok && m.Kind == trial
}

// filter returns a filter for packet sockets that accepts trials of a family.
func filter(f families, port uint16) ([]bpf.RawInstruction, error) {
	// Offsets of the protocol and of the destination port. Trials have no IP options.
	protocolAt, portAt := uint32(9), uint32(packet.IPv4Bytes+2)
	if f == has6 {
		protocolAt, portAt = 6, packet.IPv6Bytes+2
	}
	all, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: protocolAt, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(packet.UDP), SkipTrue: 3},
		bpf.LoadAbsolute{Off: portAt, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(port), SkipTrue: 1},
		bpf.RetConstant{Val: maxPacket},
		bpf.RetConstant{Val: 0},
	})
	if err != nil {
		return nil, fmt.Errorf("assemble the filter of trials: %w", err)
	}
	return all, nil
}

// maxPacket bounds received messages with their headers, in bytes.
const maxPacket = 256
