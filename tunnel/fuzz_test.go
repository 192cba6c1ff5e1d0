package tunnel

import (
	"bytes"
	"encoding/binary"
	"testing"

	"cleat/tunnel/secure"
	"cleat/tunnel/wire"
)

// How FuzzPackets delivers its input to an end.
const (
	fuzzPlain     = iota // unchanged, to a session without a key
	fuzzGuessed          // after a header with the session's tag
	fuzzKeyed            // unchanged, to a session with a key
	fuzzSealed           // sealed by a hostile peer
	fuzzHandshake        // as handshake messages of a hostile peer
	fuzzCompat           // unchanged, to a session of the compat form
	fuzzHello            // after the header of a hello, to an end without a session
	fuzzModes
)

// FuzzPackets makes an end receive arbitrary packets, from strangers and from a peer that
// has the key. No packet of a stranger may be delivered, and no state may grow beyond its
// bounds.
func FuzzPackets(f *testing.F) {
	plain, keyed, compat := newEnds(f, Config{}, false, 2), newEnds(f, Config{}, false, 2), newEnds(f, Config{}, false, 2)
	keyed.seal(f)
	compat.b.useCompat()
	body := func(s superPacket) []byte {
		_, pkt := s.build()
		return pkt
	}
	data := body(oneDatagram())
	var control []byte
	control = wire.AppendMark(control, wire.Mark{NextSeq: 5, LivePaths: 3})
	control = wire.AppendReport(control, &wire.Report{Path: 1})
	control = wire.AppendMissing(control, wire.Missing{Count: 9})
	control = wire.AppendReceiver(control, wire.Receiver{})
	control = wire.Append(wire.Append(control, wire.TypeLeave, nil), wire.TypeEcho, make([]byte, wire.EchoBytes))
	control = wire.Append(wire.Append(control, wire.TypeReply, make([]byte, wire.EchoBytes)), wire.TypeCapacity, make([]byte, 4))
	header := func(kind byte, rest []byte) []byte {
		return append(append([]byte{0, kind << 4, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0}, make([]byte, 4)...), rest...)
	}
	for way := range byte(fuzzModes) {
		f.Add(way, withLengths(header(0, data), header(1, data), header(2, control), header(3, control)))
		f.Add(way, withLengths(compatPacket(1), compatPacket(9), mptKeepalivePacket(), helloPacket(hello{senderName: 1}), []byte{0x10, 0, 0x88, 0xb5, 0}))
		f.Add(way, withLengths(bytes.Repeat([]byte{1}, 141), nil, []byte{0}, []byte{2, 1}, make([]byte, 300)))
	}
	f.Fuzz(func(t *testing.T, way byte, all []byte) {
		e := [...]*ends{plain, plain, keyed, keyed, keyed, compat, plain}[way%fuzzModes]
		end := e.b
		e.devB.t = t
		beginFuzz(e, way%fuzzModes)
		sent := uint32(1)
		for len(all) >= 2 {
			n := min(int(binary.BigEndian.Uint16(all)), len(all)-2)
			b := bytes.Clone(all[2 : 2+n])
			all = all[2+n:]
			b = e.wrap(way%fuzzModes, b, &sent)
			end.in.handlePacket(end.now(), end.paths[len(b)%2], b, 0, uint8(len(b)%4))
		}
		end.in.buf.Settle(end.now())
		end.in.flush()
		end.in.buildReports(end.now(), end.in.sendReport)
		if end.handshakes != nil {
			end.handshakes.processMessage(end.now())
		}
		if n := len(e.devB.readAll()); n > 0 && (way%fuzzModes == fuzzPlain || way%fuzzModes == fuzzKeyed || way%fuzzModes == fuzzHello) {
			t.Errorf("%d forged packets were delivered", n)
		}
		if s := end.in.buf.Stats(); len(end.in.knownPaths) > MaxPaths || s.WaitingBytes > 64<<20 || end.resends.len() > 0 || end.sender.MaxInFlightBytes > maxPeerCapacity {
			t.Errorf("%d known paths, %d bytes waiting, %d pieces queued for resending", len(end.in.knownPaths), s.WaitingBytes, end.resends.len())
		}
		for id := range 2 {
			discardPath(e.a, id)
		}
	})
}

// beginFuzz starts a session at the second end, or makes it wait for a hello.
func beginFuzz(e *ends, way byte) {
	e.b.in.startSession()
	if e.b.cfg.Key != nil {
		k := newKeys(e.b.session.keys.Session, e.b.now())
		e.b.session.keys = k
		e.b.keyring.use(k)
		return
	}
	if way == fuzzCompat {
		return
	}
	e.b.newSession()
	if way != fuzzHello {
		e.b.setPeerName(e.a.session.ownName)
		e.b.session.up = true
	}
}

// wrap makes a packet of the input as the mode requires.
func (e *ends) wrap(way byte, b []byte, sent *uint32) []byte {
	*sent++
	shim := wire.Shim{Tag: uint32(e.b.peerTag.Load()), PathSeq: *sent}
	if len(b) > 1 {
		shim.Path = b[0] & (MaxPaths - 1)
		if b[1]>>4 == byte(wire.Control) {
			shim.Kind = wire.Control
		}
	}
	switch way {
	case fuzzHello:
		return append(append(wire.AppendHello(nil), plainHello), b...)
	case fuzzHandshake:
		h := append(wire.AppendHello(nil), sealedHello)
		return e.a.handshakes.guard.Seal(h, h, b)
	case fuzzGuessed, fuzzSealed:
	default:
		return b
	}
	whole := make([]byte, wire.HeaderBytes, wire.HeaderBytes+len(b)+secure.Overhead)
	if way == fuzzSealed {
		shim.Tag = e.a.session.keys.outTag
	}
	shim.Put(whole)
	if len(b) > 1 { // the input includes the rest of the header
		whole = append(whole[:wire.ClearBytes], b[1:]...)
	}
	if way == fuzzGuessed {
		return whole
	}
	n := len(whole)
	whole = append(whole, make([]byte, secure.Overhead)...)
	e.a.session.keys.seal(whole, n, nonceSpace(int(shim.Path), shim.Kind), uint64(*sent))
	return whole
}

// withLengths concatenates packets, each preceded by its length.
func withLengths(all ...[]byte) []byte {
	var b []byte
	for _, p := range all {
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(p))), p...)
	}
	return b
}
