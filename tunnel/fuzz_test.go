package tunnel

import (
	"bytes"
	"encoding/binary"
	"testing"

	"cleat/tunnel/secure"
	"cleat/tunnel/wire"
)

// The ways in which FuzzPackets has bytes come to an end.
const (
	fuzzPlain    = iota // as they are, to a session without a key
	fuzzGuessed         // behind a header with the session's tag
	fuzzKeyed           // as they are, to a session with a key
	fuzzSealed          // sealed by a peer that is hostile
	fuzzLetters         // as such a peer's handshake messages
	fuzzCompat          // as they are, to a session of the compat form
	fuzzGreeting        // behind the header of a greeting, to an end that waits for its peer
	fuzzWays
)

// FuzzPackets has an end receive any packets, from strangers and from a peer that holds the
// key. Nothing of a stranger's is delivered, and nothing grows beyond its bounds.
func FuzzPackets(f *testing.F) {
	plain, keyed, compat := newEnds(f, Config{}, false, 2), newEnds(f, Config{}, false, 2), newEnds(f, Config{}, false, 2)
	keyed.seal(f)
	compat.b.speakCompat()
	body := func(s super) []byte {
		_, pkt := s.build()
		return pkt
	}
	data := body(oneDatagram())
	var control []byte
	control = wire.AppendMark(control, wire.Mark{Next: 5, Live: 3})
	control = wire.AppendReport(control, &wire.Report{Path: 1})
	control = wire.AppendMissing(control, wire.Missing{Count: 9})
	control = wire.Append(wire.Append(control, wire.TypeLeave, nil), wire.TypeEcho, make([]byte, wire.EchoBytes))
	control = wire.Append(wire.Append(control, wire.TypeReply, make([]byte, wire.EchoBytes)), wire.TypeRoom, make([]byte, 4))
	header := func(kind byte, rest []byte) []byte {
		return append(append([]byte{0, kind << 4, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0}, make([]byte, 4)...), rest...)
	}
	for way := range byte(fuzzWays) {
		f.Add(way, lengths(header(0, data), header(1, data), header(2, control), header(3, control)))
		f.Add(way, lengths(compatPacket(1), compatPacket(9), mptSample(), greeting(hello{mine: 1}), []byte{0x10, 0, 0x88, 0xb5, 0}))
		f.Add(way, lengths(bytes.Repeat([]byte{1}, 141), nil, []byte{0}, []byte{2, 1}, make([]byte, 300)))
	}
	f.Fuzz(func(t *testing.T, way byte, all []byte) {
		e := [...]*ends{plain, plain, keyed, keyed, keyed, compat, plain}[way%fuzzWays]
		end := e.b
		e.devB.t = t
		begin(e, way%fuzzWays)
		sent := uint32(1)
		for len(all) >= 2 {
			n := min(int(binary.BigEndian.Uint16(all)), len(all)-2)
			b := bytes.Clone(all[2 : 2+n])
			all = all[2+n:]
			b = e.dress(way%fuzzWays, b, &sent)
			end.in.packet(end.now(), end.paths[len(b)%2], b, 0, uint8(len(b)%4))
		}
		end.in.buf.Settle(end.now())
		end.in.flush()
		end.in.collect(end.now(), end.in.sendReport)
		if end.hands != nil {
			end.hands.read(end.now())
		}
		if n := len(e.devB.written()); n > 0 && (way%fuzzWays == fuzzPlain || way%fuzzWays == fuzzKeyed || way%fuzzWays == fuzzGreeting) {
			t.Errorf("%d packets of a stranger's were delivered", n)
		}
		if s := end.in.buf.Stats(); len(end.in.heard) > MaxPaths || s.WaitBytes > 64<<20 || end.again.len() > 0 || end.send.Inflight > roomMost {
			t.Errorf("%d paths are known, %d bytes wait, %d pieces are sent again", len(end.in.heard), s.WaitBytes, end.again.len())
		}
		for id := range 2 {
			swallow(e.a, id)
		}
	})
}

// begin has the second end begin a life, or, for greetings, wait for its peer.
func begin(e *ends, way byte) {
	e.b.in.begin()
	if e.b.cfg.Key != nil {
		k := newKeys(e.b.sess.keys.Session, e.b.now())
		e.b.sess.keys = k
		e.b.ring.use(k)
		return
	}
	if way == fuzzCompat {
		return
	}
	e.b.beginLife()
	if way != fuzzGreeting {
		e.b.know(e.a.sess.mine)
		e.b.sess.up = true
	}
}

// dress puts bytes into the packet that a way asks for.
func (e *ends) dress(way byte, b []byte, sent *uint32) []byte {
	*sent++
	shim := wire.Shim{Tag: uint32(e.b.expects.Load()), PathSeq: *sent}
	if len(b) > 1 {
		shim.Path = b[0] & (MaxPaths - 1)
		if b[1]>>4 == byte(wire.Control) {
			shim.Kind = wire.Control
		}
	}
	switch way {
	case fuzzGreeting:
		return append(append(wire.AppendHello(nil), plainGreeting), b...)
	case fuzzLetters:
		h := append(wire.AppendHello(nil), sealedGreeting)
		return e.a.hands.guard.Seal(h, h, b)
	case fuzzGuessed, fuzzSealed:
	default:
		return b
	}
	whole := make([]byte, wire.HeaderBytes, wire.HeaderBytes+len(b)+secure.Overhead)
	if way == fuzzSealed {
		shim.Tag = e.a.sess.keys.out
	}
	shim.Put(whole)
	if len(b) > 1 { // the rest of the header is the peer's, too
		whole = append(whole[:wire.ClearBytes], b[1:]...)
	}
	if way == fuzzGuessed {
		return whole
	}
	n := len(whole)
	whole = append(whole, make([]byte, secure.Overhead)...)
	e.a.sess.keys.seal(whole, n, space(int(shim.Path), shim.Kind == wire.Control), uint64(*sent))
	return whole
}

// lengths puts packets one behind the other.
func lengths(all ...[]byte) []byte {
	var b []byte
	for _, p := range all {
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(p))), p...)
	}
	return b
}
