package dns

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/net/dns/dnsmessage"
)

// udpBuffer is the buffer size for an answer over UDP. Servers are told to send at most
// maxUDPAnswer; some send more.
const udpBuffer = 4096

// maxForged is the number of wrong messages on a socket connected to the server after
// which the server is asked over TCP instead: so many are no accident (the idea is in RFC
// 5452 section 9.3).
const maxForged = 3

// errServer is a server's answer that it cannot help.
type errServer dnsmessage.RCode

func (e errServer) Error() string { return "server answered " + dnsmessage.RCode(e).String() }

// Answered reports that a server answered. Package policy uses it.
func (errServer) Answered() bool { return true }

// helpless are the response codes that mean that another server should be asked.
var helpless = []dnsmessage.RCode{dnsmessage.RCodeServerFailure, dnsmessage.RCodeRefused, dnsmessage.RCodeNotImplemented}

// try is the outcome of asking one server once.
type try struct {
	rank   int // the server's position in the plan
	server netip.AddrPort
	raw    []byte
	ans    answer
	err    error
}

// ask asks one server once: over UDP, and over TCP if resolv.conf, the answer or
// forgeries require it. b holds the answer's bytes.
func (f *Forwarder) ask(ctx context.Context, b *account, server netip.AddrPort, q *question, way transport) try {
	out := try{server: server}
	if !b.ledger.Charge(tryCost) {
		out.err = errLimit
		return out
	}
	defer b.ledger.Refund(tryCost)
	tcp := way.tcp
	if !tcp {
		out.raw, out.ans, out.err = f.askUDP(ctx, b, server, q)
		tcp = errors.Is(out.err, errForged) || out.err == nil && out.ans.truncated && way.stream
	}
	if tcp {
		out.raw, out.ans, out.err = f.askTCP(ctx, b, server, q)
	}
	if out.err == nil && slices.Contains(helpless, out.ans.code) {
		out.err = errServer(out.ans.code)
	}
	return out
}

// dial opens a socket. When ctx ends, its reads fail. The caller calls the returned
// function to close it.
func (f *Forwarder) dial(ctx context.Context, network string, server netip.AddrPort) (net.Conn, func(), error) {
	conn, err := f.cfg.Dial(ctx, network, server)
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(past) })
	return conn, func() { stop(); conn.Close() }, nil
}

// newID returns an unpredictable message id.
func newID() uint16 {
	var b [2]byte
	rand.Read(b[:]) // never fails
	return binary.BigEndian.Uint16(b[:])
}

func (f *Forwarder) askUDP(ctx context.Context, b *account, server netip.AddrPort, q *question) ([]byte, answer, error) {
	conn, done, err := f.dial(ctx, "udp", server)
	if err != nil {
		return nil, answer{}, err
	}
	defer done()
	sent := query{newID(), q}
	out, err := sent.message(0)
	if err != nil {
		return nil, answer{}, err
	}
	if _, err := conn.Write(out); err != nil {
		return nil, answer{}, err
	}
	buf := f.buffers.Get().(*[udpBuffer]byte)
	defer f.buffers.Put(buf)
	for forged := 0; ; {
		n, err := conn.Read(buf[:])
		if err != nil {
			return nil, answer{}, err
		}
		a, err := parseAnswer(buf[:n], &sent)
		switch {
		case err == nil && !b.hold(n):
			return nil, answer{}, errLimit
		case err == nil:
			return slices.Clone(buf[:n]), a, nil
		case errors.Is(err, errForged):
			f.stats.forged.Add(1)
			if forged++; forged >= maxForged {
				return nil, answer{}, err
			}
		default:
			return nil, answer{}, err
		}
	}
}

func (f *Forwarder) askTCP(ctx context.Context, b *account, server netip.AddrPort, q *question) ([]byte, answer, error) {
	conn, done, err := f.dial(ctx, "tcp", server)
	if err != nil {
		return nil, answer{}, err
	}
	defer done()
	sent := query{newID(), q}
	out, err := sent.message(LengthBytes)
	if err != nil {
		return nil, answer{}, err
	}
	binary.BigEndian.PutUint16(out, uint16(len(out)-LengthBytes))
	if _, err := conn.Write(out); err != nil {
		return nil, answer{}, err
	}
	n, err := readLength(conn, maxMessage)
	if err != nil {
		return nil, answer{}, err
	}
	if !b.hold(n) {
		return nil, answer{}, errLimit
	}
	raw := make([]byte, n)
	if _, err := io.ReadFull(conn, raw); err != nil {
		return nil, answer{}, err
	}
	a, err := parseAnswer(raw, &sent)
	if err != nil {
		f.stats.forged.Add(1)
	}
	return raw, a, err
}

// readLength reads the length that precedes a message over TCP (RFC 1035 section 4.2.2).
func readLength(r io.Reader, most int) (int, error) {
	var length [LengthBytes]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return 0, err
	}
	n := int(binary.BigEndian.Uint16(length[:]))
	if n > most {
		return 0, fmt.Errorf("read message of %d bytes: want at most %d", n, most)
	}
	return n, nil
}

// ReadMessage reads a message behind its length, as over TCP. It is an error if the message
// is longer than most bytes.
func ReadMessage(r io.Reader, most int) ([]byte, error) {
	n, err := readLength(r, most)
	if err != nil {
		return nil, err
	}
	msg := make([]byte, n)
	_, err = io.ReadFull(r, msg)
	return msg, err
}
