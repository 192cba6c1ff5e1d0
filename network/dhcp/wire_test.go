package dhcp

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"cleat/packet"

	"golang.org/x/net/bpf"
)

// toClient returns a packet from a server.
func toClient(message []byte) []byte {
	src, dst := mustAddr("192.0.2.1"), netip.AddrFrom4([4]byte{255, 255, 255, 255})
	b := make([]byte, packet.IPv4Bytes+packet.UDPBytes+len(message))
	u := b[packet.PutIP(b, src, dst, packet.UDP, 0, packet.UDPBytes+len(message)):]
	copy(u[packet.PutUDP(u, serverPort, clientPort, len(message)):], message)
	binary.BigEndian.PutUint16(u[6:], packet.TransportChecksum(src, dst, packet.UDP, u))
	return b
}

// payload accepts only datagrams for clients whose checksum is correct or absent.
func TestPayload(t *testing.T) {
	message := []byte("message!")
	vm, err := bpf.NewVM(clientFilter())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change   func(b []byte)
		taken    bool
		filtered bool
	}{
		"good":                          {func([]byte) {}, true, false},
		"no checksum":                   {func(b []byte) { b[26], b[27] = 0, 0 }, true, false},
		"checksum of the pseudo header": {func(b []byte) { copy(b[26:], pseudo(b)) }, true, false},
		"wrong checksum":                {func(b []byte) { b[26] ^= 1 }, false, false},
		"corrupted":                     {func(b []byte) { b[30] ^= 1 }, false, false},
		"another port":                  {func(b []byte) { b[23] = 69 }, false, true},
		"TCP":                           {func(b []byte) { b[9] = 6 }, false, true},
		"a fragment":                    {func(b []byte) { b[6] = 0x20 }, false, true},
		"truncated":                     {func(b []byte) { b[25]++ }, false, false},
		"IPv6":                          {func(b []byte) { b[0] = 0x65 }, false, false},
	} {
		b := toClient(message)
		c.change(b)
		if got := payload(b); (got != nil) != c.taken || c.taken && !bytes.Equal(got, message) {
			t.Errorf("%s: %q", name, got)
		}
		if n, err := vm.Run(b); err != nil || (n == 0) != c.filtered {
			t.Errorf("%s: the filter passes %d bytes, %v", name, n, err)
		}
	}
}

// pseudo returns the checksum as the kernel leaves it for hardware to complete.
func pseudo(b []byte) []byte {
	var ip packet.IP
	if packet.ParseIP(b, &ip) != nil {
		return nil
	}
	return binary.BigEndian.AppendUint16(nil, packet.Fold(packet.PseudoSum(ip.Src, ip.Dst, packet.UDP, len(ip.Payload))))
}

// A server's kernel accepts the packets of datagram.
func TestDatagram(t *testing.T) {
	b := datagram(netip.IPv4Unspecified(), broadcast(), []byte("question"))
	var ip packet.IP
	var u packet.UDPHeader
	if err := packet.ParseIP(b, &ip); err != nil {
		t.Fatal(err)
	}
	if err := packet.ParseUDP(ip.Payload, &u); err != nil {
		t.Fatal(err)
	}
	if ip.Src != netip.IPv4Unspecified() || ip.Dst != broadcast() || ip.DontFragment || u.SrcPort != clientPort || u.DstPort != serverPort || string(u.Payload) != "question" {
		t.Errorf("%+v %+v", ip, u)
	}
	if packet.Checksum(b[:packet.IPv4Bytes]) != 0 || packet.TransportChecksum(ip.Src, ip.Dst, packet.UDP, ip.Payload) != 0 {
		t.Error("wrong checksum")
	}
}

func FuzzPayload(f *testing.F) {
	f.Add(toClient([]byte("message")))
	f.Fuzz(func(t *testing.T, b []byte) {
		if p := payload(b); len(p) > len(b)-packet.IPv4Bytes-packet.UDPBytes && p != nil {
			t.Errorf("%d bytes of %d", len(p), len(b))
		}
	})
}
