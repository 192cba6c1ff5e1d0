package endpoint_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"cleat/lab"
	"cleat/link"
	"cleat/packet"

	"golang.org/x/sys/unix"
)

// receiverPort is the port of receivers, on all addresses of a node.
const receiverPort = 4242

// receiver receives datagrams on all of a node's addresses. It checks that they carry
// numbers that the test has sent, each once.
type receiver struct {
	conn *net.UDPConn

	mu       sync.Mutex
	sent     uint64         // numbers below it have been sent
	received map[uint64]int // how often a number arrived
	wrong    [][]byte       // datagrams that the test has not sent
}

func newReceiver(t *testing.T, n *lab.Node) *receiver {
	t.Helper()
	j := &receiver{received: map[uint64]int{}}
	must(t, n.NS.Do(func() (err error) {
		j.conn, err = net.ListenUDP("udp4", &net.UDPAddr{Port: receiverPort})
		return err
	}))
	var reading sync.WaitGroup
	reading.Go(j.read)
	t.Cleanup(func() {
		j.conn.Close()
		reading.Wait()
	})
	return j
}

func (j *receiver) read() {
	buf := make([]byte, 2048)
	for {
		n, err := j.conn.Read(buf)
		if err != nil {
			return
		}
		j.mu.Lock()
		if number := binary.BigEndian.Uint64(append(buf[:n:n], make([]byte, 8)...)); n == 8 && number < j.sent {
			j.received[number]++
		} else {
			j.wrong = append(j.wrong, bytes.Clone(buf[:n]))
		}
		j.mu.Unlock()
	}
}

// send sends the receiver its next number through the tunnel.
func (j *receiver) send(c net.Conn) {
	j.mu.Lock()
	number := j.sent
	j.sent++
	j.mu.Unlock()
	_, _ = c.Write(binary.BigEndian.AppendUint64(nil, number)) // lost datagrams are no error
}

func (j *receiver) arrived() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.received)
}

func (j *receiver) check(t *testing.T, name string) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	for number, n := range j.received {
		if n > 1 {
			t.Errorf("%s received datagram %d %d times", name, number, n)
		}
	}
	if len(j.wrong) > 0 {
		t.Errorf("%s received %d forged datagrams, the first is %q", name, len(j.wrong), j.wrong[0])
	}
}

// intruder is on a path of a testbed, between both ends: it reads all frames and injects
// its own.
type intruder struct {
	*rand.Rand
	testbed  *testbed
	path     int
	onPath   bool      // it also replays what it has read
	fds      [2]int    // packet sockets, by the end that they lead to
	template [2][]byte // an example of a frame to each end
	seen     [2][][]byte
}

// Offsets in a frame: Ethernet, IPv4 without options, UDP.
const (
	frameIP   = 14
	frameUDP  = frameIP + packet.IPv4Bytes
	frameData = frameUDP + packet.UDPBytes
)

func newIntruder(b *testbed, path int, seed uint64, onPath bool) *intruder {
	b.t.Helper()
	x := &intruder{Rand: rand.New(rand.NewPCG(seed, uint64(path))), testbed: b, path: path, onPath: onPath}
	for i := range x.fds {
		// A cable with offloads would show frames that are too big to send.
		must(b.t, b.ends[i].link(deviceName(path)).SetOffload("uso", false))
		port, err := link.Find(b.middle[path].NS, fmt.Sprintf("port%d", i))
		must(b.t, err)
		must(b.t, b.middle[path].NS.Do(func() (err error) {
			x.fds[i], err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			if err != nil {
				return err
			}
			return unix.Bind(x.fds[i], &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: port.Index()})
		}))
		b.t.Cleanup(func() { unix.Close(x.fds[i]) })
	}
	eventually(b.t, 5*time.Second, func() bool {
		x.read()
		return x.template[0] != nil && x.template[1] != nil
	}, func() string { return "the intruder has seen no frames" })
	return x
}

// maxSeenFrames is how many frames the intruder remembers per end.
const maxSeenFrames = 1 << 10

// read reads passing frames.
func (x *intruder) read() {
	buf := make([]byte, 2048)
	for from, fd := range x.fds {
		for range 256 {
			n, at, err := unix.Recvfrom(fd, buf, 0)
			if err != nil {
				break
			}
			ll, ok := at.(*unix.SockaddrLinklayer)
			b := buf[:n]
			if !ok || ll.Pkttype == unix.PACKET_OUTGOING || n <= frameData || b[frameIP] != 0x45 || b[frameIP+9] != byte(packet.UDP) ||
				binary.BigEndian.Uint16(b[frameUDP+2:]) != tunnelPort {
				continue
			}
			to := 1 - from
			x.template[to] = bytes.Clone(b[:frameData])
			if data := bytes.Clone(b[frameData:]); len(x.seen[to]) < maxSeenFrames {
				x.seen[to] = append(x.seen[to], data)
			} else {
				x.seen[to][x.IntN(maxSeenFrames)] = data
			}
		}
	}
}

// attack sends one packet to either end, from the other's address and port.
func (x *intruder) attack() {
	to := x.IntN(2)
	data := x.invent(to)
	if from := x.IntN(2); x.onPath && x.IntN(3) > 0 && len(x.seen[from]) > 0 {
		data = bytes.Clone(x.seen[from][x.IntN(len(x.seen[from]))])
		for range x.IntN(3) { // 0: a replay, or a packet reflected to its sender
			data[x.IntN(len(data))] ^= byte(1 + x.IntN(255))
		}
	}
	b := append(bytes.Clone(x.template[to]), data...)
	binary.BigEndian.PutUint16(b[frameIP+2:], uint16(len(b)-frameIP))
	binary.BigEndian.PutUint16(b[frameUDP+4:], uint16(len(b)-frameUDP))
	copy(b[frameUDP+6:], []byte{0, 0}) // no checksum (RFC 768)
	copy(b[frameIP+10:], []byte{0, 0})
	binary.BigEndian.PutUint16(b[frameIP+10:], packet.Checksum(b[frameIP:frameUDP]))
	_, _ = unix.Write(x.fds[to], b) // dropped if the queue is full
}

// invent makes up a UDP payload, with a datagram for the receiver inside.
func (x *intruder) invent(to int) []byte {
	random := make([]byte, x.IntN(200))
	for i := range random {
		random[i] = byte(x.Uint32())
	}
	inside := forgedDatagram(innerAddr(1-to, 4), []netip.Addr{
		innerAddr(to, 4), netip.MustParseAddr("127.0.0.1"), outerPrefix(to, x.path, 4).Addr(), netip.MustParseAddr("224.0.0.1"),
	}[x.IntN(4)])
	native := make([]byte, 24)
	copy(native, []byte{0x30, 0, 0x88, 0xb5})
	binary.BigEndian.PutUint32(native[4:], x.Uint32())
	binary.BigEndian.PutUint32(native[8:], x.Uint32N(1<<16))
	native[12] = byte(x.IntN(3))
	binary.BigEndian.PutUint32(native[16:], x.Uint32N(1<<16))
	switch x.IntN(5) {
	case 0:
		return random
	case 1: // compat
		return append([]byte{0, 0, 8, 0}, inside...)
	case 2: // compat, with a sequence number
		return append(binary.BigEndian.AppendUint32([]byte{0x10, 0, 8, 0}, x.Uint32()), inside...)
	case 3: // a hello
		return append([]byte{0, 0, 0x88, 0xb5, 2, byte(x.IntN(3))}, random...)
	}
	return append(native, inside...)
}

func forgedDatagram(from, to netip.Addr) []byte {
	const data = "forged"
	b := make([]byte, packet.IPv4Bytes+packet.UDPBytes, packet.IPv4Bytes+packet.UDPBytes+len(data))
	n := packet.PutIP(b, from, to, packet.UDP, 0, packet.UDPBytes+len(data))
	packet.PutUDP(b[n:], receiverPort, receiverPort, len(data))
	b = append(b, data...)
	binary.BigEndian.PutUint16(b[n+packet.UDPChecksumOffset:], packet.TransportChecksum(from, to, packet.UDP, b[n:]))
	return b
}

// forgedPackets returns how many packets intruders send: a tenth of CLEAT_FUZZ_PACKETS,
// or what takes a second or two.
func forgedPackets(t *testing.T) int {
	t.Helper()
	s := os.Getenv("CLEAT_FUZZ_PACKETS")
	if s == "" {
		return 50_000
	}
	n, err := strconv.Atoi(s)
	must(t, err)
	return n / 10
}

// TestIntruders puts intruders on the paths of a tunnel with a key, and beside those of a
// tunnel without one, which send forged, replayed and altered packets. Receivers on both
// ends must get each datagram of the other end at most once, and nothing else.
func TestIntruders(t *testing.T) {
	for _, key := range []bool{true, false} {
		t.Run(fmt.Sprintf("key %v", key), func(t *testing.T) {
			b := newTestbed(t, topology{outside: []int{4, 4}, key: key})
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			intruders := []*intruder{newIntruder(b, 0, seed, key), newIntruder(b, 1, seed, key)}
			var judges [2]*receiver
			var senders [2]net.Conn
			for i, e := range b.ends {
				judges[i] = newReceiver(t, e.node)
				must(t, b.ends[1-i].node.NS.Do(func() (err error) {
					senders[i], err = net.Dial("udp4", netip.AddrPortFrom(innerAddr(i, 4), receiverPort).String())
					return err
				}))
				t.Cleanup(func() { senders[i].Close() })
			}
			memory, files := [2]int{}, [2]int{}
			for i, e := range b.ends {
				memory[i], files[i] = e.memory(), e.descriptors()
			}
			for i := range forgedPackets(t) {
				if x := intruders[i%2]; i%64 < 2 {
					judges[i%2].send(senders[i%2])
					x.read()
				}
				intruders[i%2].attack()
			}
			b.waitReady()
			for i, e := range b.ends {
				before := judges[i].arrived()
				eventually(t, 10*time.Second, func() bool {
					judges[i].send(senders[i])
					return judges[i].arrived() > before
				}, func() string { return "no more packets arrive" })
				judges[i].check(t, e.name)
				if s := e.status(); s.Invalid == 0 {
					t.Errorf("%s saw no invalid packets: the test proves nothing", e.name)
				}
				const most = 64 << 20 // bytes: reordering buffers and garbage
				if now := e.memory(); now > memory[i]+most {
					t.Errorf("%s: memory grew from %d to %d bytes", e.name, memory[i], now)
				}
				if now := e.descriptors(); now != files[i] {
					t.Errorf("%s: descriptors changed from %d to %d", e.name, files[i], now)
				}
			}
		})
	}
}

// descriptors returns the number of descriptors of the end's process.
func (e *end) descriptors() int {
	e.t.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", e.proc.PID()))
	must(e.t, err)
	return len(all)
}
