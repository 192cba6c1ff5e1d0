package usernet

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"cleat/packet"
	"cleat/usernet/guesttest"
)

// A model of the two byte streams of one connection, driven by a guest that splits,
// repeats, reorders, loses and shrinks at random. Whatever it does within the rules of
// TCP, both streams must arrive unchanged, and what it receives must keep those rules:
// retransmissions carry the same bytes, the window's edge never moves back, the guest's
// window is never exceeded.
type streamModel struct {
	*rig
	c    *guesttest.Conn
	rand *rand.Rand

	out    []byte // the guest's stream
	una    int    // bytes of out acknowledged; the FIN counts 1
	edge   int    // bytes of out allowed
	sent   int    // bytes of out sent, at most
	in     []byte // the host's stream
	have   []bool // bytes of in, and the FIN after it, that were received
	next   int    // first missing byte of in
	window int    // the guest's current window, bytes
	most   int    // farthest byte of in that the guest ever allowed
}

const modelScale = 7 // scale as Conn offers it, and as we do

func TestStreamsAgainstModel(t *testing.T) {
	seeds := []uint64{1, 2, 3, 4, 5, 6, 7, 8}
	for range 4 {
		seeds = append(seeds, rand.Uint64())
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { family(t, func(t *testing.T, r *rig) { streams(r, seed) }) })
	}
}

func streams(r *rig, seed uint64) {
	m := &streamModel{rig: r, rand: rand.New(rand.NewPCG(seed, 1))}
	m.out, m.in = m.bytes(100_000+m.rand.IntN(100_000)), m.bytes(100_000+m.rand.IntN(100_000))
	m.have = make([]bool, len(m.in)+1)
	c, host := r.open(func(c *guesttest.Conn) {
		c.Options = append(guesttest.MSS(uint16(100+m.rand.IntN(1360))), guesttest.Scale(modelScale)...)
		c.Window = 65535 >> modelScale
		if m.rand.IntN(2) == 0 {
			c.Start = -uint32(m.rand.IntN(len(m.out)))
			c.Seq = c.Start
		}
	})
	m.c, m.edge, m.most, m.window = c, 65535, 65535, 65535
	read := make(chan []byte, 1)
	go m.hostReads(host, rand.New(rand.NewPCG(seed, 2)), read)
	go m.hostWrites(host, rand.New(rand.NewPCG(seed, 3)))

	end := time.Now().Add(testTimeout)
	for step := 0; !m.done(); step++ {
		if time.Now().After(end) {
			r.Fatalf("no end: of %d bytes out %d are acknowledged (window to %d), of %d in %d arrived (window %d)",
				len(m.out), m.una, m.edge, len(m.in), m.next, m.window)
		}
		m.step(step%8 == 0)
	}
	if got := <-read; !bytes.Equal(got, m.out) {
		r.Fatalf("the host read %d bytes, want %d: the stream was changed", len(got), len(m.out))
	}
	r.gone()
}

func (m *streamModel) bytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(m.rand.Uint32())
	}
	return b
}

func (m *streamModel) hostReads(host net.Conn, r *rand.Rand, read chan<- []byte) {
	var all []byte
	for {
		b := make([]byte, 1+r.IntN(8000))
		n, err := host.Read(b)
		all = append(all, b[:n]...)
		if err == io.EOF {
			break
		}
		if err != nil {
			m.Errorf("the host reads: %v", err)
			break
		}
	}
	read <- all
}

func (m *streamModel) hostWrites(host *net.TCPConn, r *rand.Rand) {
	for rest := m.in; len(rest) > 0; {
		n := min(1+r.IntN(20000), len(rest))
		if _, err := host.Write(rest[:n]); err != nil {
			m.Errorf("the host writes: %v", err)
			return
		}
		rest = rest[n:]
	}
	if err := host.CloseWrite(); err != nil {
		m.Errorf("the host closes: %v", err)
	}
}

func (m *streamModel) done() bool { return m.una == len(m.out)+1 && m.next == len(m.in)+1 }

// step performs a random action. It makes progress often enough to come to an end.
func (m *streamModel) step(sensible bool) {
	if sensible {
		m.window = 65535
		m.send(m.una, min(20000, m.edge-m.una), 0)
	} else {
		for range 1 + m.rand.IntN(3) {
			m.senseless()
		}
	}
	for _, p := range m.g.Settle() {
		if sensible || m.rand.IntN(6) > 0 { // otherwise it is lost
			m.take(p)
		}
	}
	if m.done() { // the last acknowledgement must not be lost
		m.send(m.una, 0, 0)
		m.g.Settle()
	}
}

func (m *streamModel) senseless() {
	switch m.rand.IntN(10) {
	case 0:
		m.window = []int{0, 1 << modelScale, 3 << modelScale, 10 << modelScale, 65535}[m.rand.IntN(5)]
	case 1:
		m.rig.advance(minRTO)
	case 2: // an old acknowledgement
		m.send(m.una, m.rand.IntN(2000), m.rand.IntN(m.next+1))
	case 3: // too early
		m.send(m.una+m.rand.IntN(3000), m.rand.IntN(3000), 0)
	case 4: // old, perhaps with new bytes
		m.send(max(0, m.una-m.rand.IntN(3000)), m.rand.IntN(6000), 0)
	case 5: // a probe
		m.send(m.una-1, 0, 0)
	case 6:
		m.send(m.una, 0, 0)
	default:
		m.send(m.una, 1+m.rand.IntN(5000), 0)
	}
}

// send sends out[from:from+n] as far as the stream and the window allow (sometimes a
// little farther). It acknowledges everything received, less back.
func (m *streamModel) send(from, n, back int) {
	flags := uint8(packet.ACK)
	var payload []byte
	if from >= 0 && from < len(m.out) {
		to := min(from+n, m.edge+m.rand.IntN(2)*m.rand.IntN(500), len(m.out))
		payload = m.out[from:max(from, to)]
	}
	if from+len(payload) == len(m.out) && n > 0 {
		flags |= packet.FIN
		m.sent = len(m.out) + 1
	}
	m.sent = max(m.sent, from+len(payload))
	m.most = max(m.most, m.next+m.window)
	s := m.c.Segment(flags, payload)
	s.Seq = m.c.Start + 1 + uint32(from)
	s.Ack = m.c.PeerStart + 1 + uint32(m.next-back)
	s.Window = uint16((m.window + 1<<modelScale - 1) >> modelScale)
	if len(payload) > 1400 {
		s.GSOSize = 1400
	}
	m.g.Send(s)
}

// take checks a packet and updates the model.
func (m *streamModel) take(p *guesttest.Packet) {
	m.Helper()
	if p.IP.Protocol != packet.TCP || p.TCP.Flags&^packet.PSH&^packet.FIN != packet.ACK {
		m.Fatalf("got %v", p)
	}
	ack := int(int32(p.TCP.Ack - m.c.Start - 1))
	if ack < m.una || ack > m.sent {
		m.Fatalf("%v acknowledges %d; %d were sent, %d acknowledged before", p, ack, m.sent, m.una)
	}
	edge := ack + int(p.TCP.Window)<<modelScale
	if edge < m.edge && ack <= len(m.out) {
		m.Fatalf("%v moves the window's edge back from %d to %d", p, m.edge, edge)
	}
	m.una, m.edge = ack, edge
	off, n := int(int32(p.TCP.Seq-m.c.PeerStart-1)), len(p.TCP.Payload)
	if n > 0 {
		if off < 0 || off+n > len(m.in) || !bytes.Equal(p.TCP.Payload, m.in[off:off+n]) {
			m.Fatalf("%v has other bytes than the stream at %d", p, off)
		}
		if off+n > m.most+1<<modelScale {
			m.Fatalf("%v goes to %d, the window never beyond %d", p, off+n, m.most)
		}
	}
	for i := off; i < off+n; i++ {
		m.have[i] = true
	}
	if p.TCP.Flags&packet.FIN != 0 {
		if off+n != len(m.in) {
			m.Fatalf("%v ends the stream at %d of %d", p, off+n, len(m.in))
		}
		m.have[len(m.in)] = true
	}
	for m.next < len(m.have) && m.have[m.next] {
		m.next++
	}
}
