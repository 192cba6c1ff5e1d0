package fastpath_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cleat/lab"
	"cleat/link"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"
)

var (
	twinSeed    = flag.Uint64("twins.seed", 0, "seed of TestTwins; 0: another one each time")
	twinMerge   = flag.Bool("twins.gro", true, "whether VXLAN devices of TestTwins merge packets (GRO): on a slow machine they do, and the fast path does not")
	twinPackets = flag.Int("twins.packets", 20_000, "packets of TestTwins in each lab")
)

// TestTwins sends the same random packets through hosts with and without the fast path. Some are of connections, and go
// the fast way; others are like them, with something changed. The same ones arrive, byte for byte.
func TestTwins(t *testing.T) {
	seed := *twinSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d: -twins.seed", seed)
	for _, c := range []struct {
		name              string
		vxlan, bridge, v6 bool
		server            int // host of the server, container 3; 0: it is outside, and sees the address of host 1
	}{
		{name: "vxlan", vxlan: true, server: 2}, {name: "routes", server: 2}, {name: "host", server: 1}, {name: "bridge", bridge: true, server: 1}, {name: "translated"},
		{name: "vxlan, IPv6", vxlan: true, v6: true, server: 2}, {name: "routes, IPv6", v6: true, server: 2}, {name: "host, IPv6", v6: true, server: 1}, {name: "translated, IPv6", v6: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got [2][2]map[uint16][][]byte
			var sent []frame
			for twin := range 2 {
				tb := newTestbed(t, c.vxlan, c.bridge)
				if c.vxlan && !*twinMerge {
					for _, h := range tb.hosts[1:] {
						l, err := link.Find(h.NS, "vx")
						must(t, err)
						must(t, l.SetOffload("gro", false))
					}
				}
				of := address
				if c.v6 {
					of = address6
				}
				ends := [2]*end{newEnd(t, tb.hosts[1].containers[2], of(1, 2)), nil}
				ends[0].gateway = tb.hosts[1].mac("c2")
				if c.server == 0 {
					outside, host := netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("192.0.2.1")
					if c.v6 {
						outside, host = netip.MustParseAddr("2001:db8::9"), netip.MustParseAddr("2001:db8::1")
					}
					ends[1] = newEnd(t, tb.outside, outside)
					ends[1].gateway = tb.hosts[1].mac("eth0")
					ends[0].seenAs = host
				} else {
					ends[1] = newEnd(t, tb.hosts[c.server].containers[3], of(c.server, 3))
					ends[1].gateway = tb.hosts[c.server].mac("c3")
				}
				if c.bridge {
					ends[0].gateway, ends[1].gateway = ends[1].mac, ends[0].mac
				}
				if twin == 1 {
					tb.hosts[1].fast()
					tb.hosts[2].fast()
				}
				sent = generate(rand.New(rand.NewPCG(seed, 1)), *twinPackets, ends)
				warm(t, ends)
				for _, f := range sent {
					ends[f.from].send(f.bytes)
				}
				time.Sleep(300 * time.Millisecond)
				for e := range ends {
					got[twin][e] = ends[e].received()
				}
				if twin == 1 {
					var fast uint64
					flows, err := tb.hosts[1].path.Flows()
					must(t, err)
					for _, f := range flows {
						fast += f.Packets
					}
					t.Logf("%d packets, of which %d and %d arrived, %d went the fast way", len(sent), len(got[1][0]), len(got[1][1]), fast)
					if fast < uint64(len(sent))/10 {
						t.Error("too few packets went the fast way")
					}
				}
			}
			different := 0
			for n, f := range sent {
				to := 1 - f.from
				plain, fast := got[0][to][uint16(n)], got[1][to][uint16(n)]
				if slices.EqualFunc(plain, fast, bytes.Equal) || len(plain) == 0 && len(fast) == 1 && hasWrongChecksum(fast[0]) {
					continue // the container drops it instead of the host
				}
				if different++; different <= 5 {
					t.Errorf("packet %d, %s:\n sent  %s\n plain %s\n fast  %s", n, f.what, hex.EncodeToString(f.bytes[14:]), texts(plain), texts(fast))
				}
			}
			if different > 0 {
				t.Errorf("%d of %d packets differ", different, len(sent))
			}
		})
	}
}

// hasWrongChecksum reports whether an IP packet of TCP or UDP has a wrong checksum there.
func hasWrongChecksum(ip []byte) bool {
	b := append(make([]byte, 14), ip...)
	checksums(b)
	return !bytes.Equal(b[14+header(ip):], ip[header(ip):])
}

func texts(all [][]byte) string {
	var s []string
	for _, b := range all {
		s = append(s, hex.EncodeToString(b))
	}
	return strings.Join(s, " and ")
}

// frame is a frame that one end sends. Its IP packet has its number, as the identification, or in the flow label.
type frame struct {
	from  int
	bytes []byte
	what  string
}

// end is a container whose own network stack answers nothing.
type end struct {
	t            testing.TB
	conn         *packet.Conn
	mac, gateway net.HardwareAddr
	addr         netip.Addr
	seenAs       netip.Addr // by the other end

	mu  sync.Mutex
	all map[uint16][][]byte // IP packets that arrived, by number
}

// silent has a host answer nothing but questions for its Ethernet address.
const silent = `table inet silent {
	chain in { type filter hook input priority filter; policy drop; icmpv6 type nd-neighbor-solicit accept; }
	chain out { type filter hook output priority filter; policy drop; icmpv6 type nd-neighbor-advert accept; }
}`

func newEnd(t testing.TB, n *lab.Node, addr netip.Addr) *end {
	t.Helper()
	run(t, n, silent, "nft -f -")
	e := &end{t: t, addr: addr, seenAs: addr, all: map[uint16][][]byte{}}
	must(t, n.NS.Do(func() error {
		ifi, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		e.mac = ifi.HardwareAddr
		e.conn, err = packet.Listen(ifi, packet.Raw, unix.ETH_P_ALL, nil)
		return err
	}))
	raw, err := e.conn.SyscallConn()
	must(t, err)
	must(t, raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20) }))
	must(t, err)
	t.Cleanup(func() { e.conn.Close() })
	go func() {
		b := make([]byte, 65536)
		for {
			n, _, err := e.conn.ReadFrom(b)
			if err != nil {
				return
			}
			at := 18 // of the number
			switch {
			case n < 34 || bytes.Equal(b[6:12], e.mac): // what it sends comes, too
				continue
			case addr.Is6():
				// Hop-by-hop options are of queries for groups.
				if !bytes.Equal(b[12:14], []byte{0x86, 0xdd}) || b[14+6] == unix.IPPROTO_ICMPV6 || b[14+6] == unix.IPPROTO_HOPOPTS {
					continue
				}
				at = 16
			case !bytes.Equal(b[12:14], []byte{8, 0}) || b[14+9] == unix.IPPROTO_IGMP || b[14+9] == unix.IPPROTO_ICMP && b[14+20] != 8:
				continue // a bridge's own, or an error of a host
			}
			id := binary.BigEndian.Uint16(b[at:])
			e.mu.Lock()
			e.all[id] = append(e.all[id], bytes.Clone(b[14:n]))
			e.mu.Unlock()
		}
	}()
	return e
}

func (e *end) send(b []byte) {
	_, err := e.conn.WriteTo(b, &packet.Addr{HardwareAddr: b[:6]})
	if err != nil && !os.IsTimeout(err) {
		e.t.Fatalf("send %x: %v", b, err)
	}
}

func (e *end) received() map[uint16][][]byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.all
}

// quiet waits until no packet with an identification has arrived for a moment.
func (e *end) quiet(id uint16) {
	count := func() int {
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.all[id])
	}
	for n := -1; n != count(); time.Sleep(100 * time.Millisecond) {
		n = count()
	}
}

func (h *host) mac(name string) net.HardwareAddr {
	var i *net.Interface
	must(h.t, h.NS.Do(func() (err error) { i, err = net.InterfaceByName(name); return err }))
	return i.HardwareAddr
}

// warm sends packets until the hosts know the Ethernet addresses of both ends.
func warm(t testing.TB, ends [2]*end) {
	t.Helper()
	const id = 0xffff
	for from, e := range ends {
		other := ends[1-from]
		for deadline := time.Now().Add(5 * time.Second); len(other.received()[id]) == 0; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("packets of end %d don't arrive", from)
			}
			c := connection{protocol: unix.IPPROTO_UDP, ports: [2]uint16{9999, 9999}}
			e.send(c.packet(ends, from, id, 0, nil).bytes)
		}
	}
	for _, e := range ends {
		e.mu.Lock()
		clear(e.all)
		e.mu.Unlock()
	}
}

// connection is one of UDP or TCP, whose client is the first end.
type connection struct {
	protocol byte
	ports    [2]uint16
	next     [2]uint32 // sequence numbers
	step     int       // of the handshake of TCP
}

const (
	fin = 1 << iota
	syn
	rst
	psh
	ack
)

// packet returns a packet of a connection.
func (c *connection) packet(ends [2]*end, from int, id uint16, flags byte, payload []byte) frame {
	to := 1 - from
	b := slices.Concat(ends[from].gateway, ends[from].mac)
	l4 := 8
	if c.protocol == unix.IPPROTO_TCP {
		l4 = 20
	}
	if ends[from].addr.Is6() {
		b = append(b, 0x86, 0xdd, 0x60, 0)
		b = binary.BigEndian.AppendUint16(b, id)
		b = binary.BigEndian.AppendUint16(b, uint16(l4+len(payload)))
		b = append(b, c.protocol, 64)
	} else {
		b = append(b, 8, 0, 0x45, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(20+l4+len(payload)))
		b = binary.BigEndian.AppendUint16(b, id)
		b = append(b, 0x40, 0, 64, c.protocol, 0, 0)
	}
	b = append(b, ends[from].addr.AsSlice()...)
	b = append(b, ends[to].seenAs.AsSlice()...)
	b = binary.BigEndian.AppendUint16(b, c.ports[from])
	b = binary.BigEndian.AppendUint16(b, c.ports[to])
	if c.protocol == unix.IPPROTO_UDP {
		b = binary.BigEndian.AppendUint16(b, uint16(8+len(payload)))
		b = append(b, 0, 0)
	} else {
		b = binary.BigEndian.AppendUint32(b, c.next[from])
		b = binary.BigEndian.AppendUint32(b, c.next[to])
		b = append(b, 0x50, flags, 0x40, 0, 0, 0, 0, 0)
		c.next[from] += uint32(len(payload))
		if flags&(syn|fin) != 0 {
			c.next[from]++
		}
	}
	b = append(b, payload...)
	checksums(b)
	return frame{from: from, bytes: b, what: fmt.Sprintf("protocol %d, flags %#x", c.protocol, flags)}
}

func sum(b []byte, s uint32) uint16 {
	for i := 0; i+1 < len(b); i += 2 {
		s += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		s += uint32(b[len(b)-1]) << 8
	}
	for s > 0xffff {
		s = s&0xffff + s>>16
	}
	return ^uint16(s)
}

// header returns the length of an IP header without options.
func header(ip []byte) int {
	if ip[0]>>4 == 6 {
		return 40
	}
	return 20
}

// checksums sets the checksums of a frame.
func checksums(b []byte) {
	ip, addresses, protocol := b[14:], 8, b[14+6]
	l4 := ip[header(ip):]
	if header(ip) == 20 {
		addresses, protocol = 12, ip[9]
		checksum(ip)
	}
	at := 6
	if protocol == unix.IPPROTO_TCP {
		at = 16
	}
	binary.BigEndian.PutUint16(l4[at:], 0)
	pseudo := uint32(protocol) + uint32(len(l4))
	for i := addresses; i < header(ip); i += 2 {
		pseudo += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	binary.BigEndian.PutUint16(l4[at:], sum(l4, pseudo))
}

// checksum sets the checksum of an IPv4 header.
func checksum(ip []byte) {
	binary.BigEndian.PutUint16(ip[10:], 0)
	binary.BigEndian.PutUint16(ip[10:], sum(ip[:20], 0))
}

// generate returns random packets.
func generate(r *rand.Rand, n int, ends [2]*end) (all []frame) {
	var connections []*connection
	for i := range 8 {
		c := &connection{protocol: unix.IPPROTO_UDP, ports: [2]uint16{uint16(10_000 + i), uint16(20_000 + i)}} // masquerading keeps such ports
		if i%2 == 1 {
			c.protocol = unix.IPPROTO_TCP
		}
		connections = append(connections, c)
	}
	l4 := 14 + 20
	if ends[0].addr.Is6() {
		l4 = 14 + 40
	}
	for len(all) < n {
		c := connections[r.IntN(len(connections))]
		id := uint16(len(all))
		from, flags := r.IntN(2), byte(ack)
		payload := make([]byte, []int{0, 1, 8, 100, 1000}[r.IntN(5)])
		if c.protocol == unix.IPPROTO_TCP && c.step < 3 {
			from, flags, payload = []int{0, 1, 0}[c.step], []byte{syn, syn | ack, ack}[c.step], nil
			if c.step == 0 {
				c.next = [2]uint32{r.Uint32(), r.Uint32()}
			}
			c.step++
			f := c.packet(ends, from, id, flags, payload)
			if c.step == 1 { // no acknowledgement yet
				clear(f.bytes[l4+8 : l4+12])
				checksums(f.bytes)
			}
			all = append(all, f)
			continue
		}
		if c.protocol == unix.IPPROTO_TCP && r.IntN(100) == 0 { // it ends, and begins again
			all = append(all, c.packet(ends, from, id, []byte{rst | ack, fin | ack}[r.IntN(2)], nil))
			if all[id].bytes[l4+13]&fin != 0 {
				all = append(all, c.packet(ends, 1-from, id+1, fin|ack, nil), c.packet(ends, from, id+2, ack, nil))
			}
			for range r.IntN(4) { // what was under way
				all = append(all, c.packet(ends, r.IntN(2), uint16(len(all)), ack, nil))
			}
			c.step = 0
			continue
		}
		for i := range payload {
			payload[i] = byte(r.Uint32())
		}
		begun := c.step > 0
		if !begun { // masquerading keeps its port
			from, c.step = 0, 1
		}
		f := c.packet(ends, from, id, flags, payload)
		if begun && r.IntN(5) == 0 {
			mutate(r, &f, c)
		}
		all = append(all, f)
	}
	return all
}

// mutate changes something of a frame.
func mutate(r *rand.Rand, f *frame, c *connection) {
	ip := f.bytes[14:]
	names := []string{"time to live", "type of service", "checksum", "flags", "length", "length of UDP", "source", "destination", "protocol", "bits", "Ethernet address", "version", "trailer", "source port"}
	v6 := header(ip) == 40
	if !v6 {
		names = append(names, "options", "fragment", "checksum of IP", "may be divided")
	}
	what := names[r.IntN(len(names))]
	f.what += ", " + what
	l4 := ip[header(ip):]
	switch what {
	case "checksum":
		at := 6
		if c.protocol == unix.IPPROTO_TCP {
			at = 16
		}
		l4[at] ^= 1 << r.IntN(8)
	case "flags":
		if c.protocol == unix.IPPROTO_TCP {
			l4[13] = byte(r.Uint32()) &^ rst &^ fin &^ syn
			checksums(f.bytes)
		}
	case "length of UDP":
		if c.protocol == unix.IPPROTO_UDP {
			binary.BigEndian.PutUint16(l4[4:], uint16(max(0, len(l4)+r.IntN(21)-10)))
		}
	case "bits":
		l4[r.IntN(len(l4))] ^= 1 << r.IntN(8)
	case "Ethernet address":
		f.bytes[5] ^= byte(1 + r.IntN(255))
	case "trailer":
		f.bytes = append(f.bytes, make([]byte, 1+r.IntN(20))...)
	case "source port":
		l4[0] ^= 1 << r.IntN(8)
		checksums(f.bytes)
	default:
		if v6 {
			mutate6(r, f, what)
		} else {
			mutate4(r, f, what)
		}
	}
}

// mutate4 changes something of an IPv4 header.
func mutate4(r *rand.Rand, f *frame, what string) {
	ip := f.bytes[14:]
	switch what {
	case "time to live":
		ip[8] = []byte{0, 1, 2, 3, 255}[r.IntN(5)]
	case "type of service":
		ip[1] = byte(r.Uint32())
	case "options":
		ip[0] = 0x46
	case "fragment":
		binary.BigEndian.PutUint16(ip[6:], []uint16{0x2000, 0x2001, 0x0005, 0x8000, 0x4001}[r.IntN(5)])
	case "checksum of IP":
		ip[10] ^= 1 << r.IntN(8)
		return
	case "length":
		binary.BigEndian.PutUint16(ip[2:], uint16(max(0, len(ip)+r.IntN(41)-20)))
	case "source":
		ip[15] ^= byte(1 + r.IntN(255))
		checksums(f.bytes)
	case "destination":
		ip[19] ^= byte(1 + r.IntN(255))
		checksums(f.bytes)
	case "protocol":
		ip[9] = []byte{1, 6, 17, 47, 132}[r.IntN(5)]
	case "version":
		ip[0] = byte(r.Uint32())
	case "may be divided":
		ip[6] = 0
	}
	checksum(ip)
}

// mutate6 changes something of an IPv6 header.
func mutate6(r *rand.Rand, f *frame, what string) {
	ip := f.bytes[14:]
	switch what {
	case "time to live":
		ip[7] = []byte{0, 1, 2, 3, 255}[r.IntN(5)]
	case "type of service":
		class := byte(r.Uint32())
		ip[0], ip[1] = 0x60|class>>4, class<<4
	case "length":
		binary.BigEndian.PutUint16(ip[4:], uint16(max(0, len(ip)-40+r.IntN(41)-20)))
	case "source":
		ip[23] ^= byte(1 + r.IntN(255))
		checksums(f.bytes)
	case "destination":
		ip[39] ^= byte(1 + r.IntN(255))
		checksums(f.bytes)
	case "protocol":
		ip[6] = []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_GRE, unix.IPPROTO_SCTP, unix.IPPROTO_FRAGMENT, unix.IPPROTO_DSTOPTS, unix.IPPROTO_NONE}[r.IntN(7)]
	case "version":
		ip[0] = byte(r.Uint32())
	}
}
