package names

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// FuzzQuery answers any message. An answer repeats the id and the question and can be parsed,
// and package dnsmessage, which is slow but proven, reads the same query.
func FuzzQuery(f *testing.F) {
	f.Add(ask(f, "web", dnsmessage.TypeA))
	f.Add(ask(f, "WEB.shop", dnsmessage.TypeAAAA, withEDNS(1232, true, 0)))
	f.Add(ask(f, "10.2.0.192.in-addr.arpa", dnsmessage.TypePTR))
	f.Add(ask(f, "0.1.0.0.ip6.arpa", dnsmessage.TypePTR))
	f.Add(ask(f, "_http._tcp.web", dnsmessage.TypeSRV))
	f.Add(ask(f, "", dnsmessage.TypeNS))
	f.Add([]byte("\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x01\x03a.b\x00\x00\x01\x00\x01\x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x00"))
	w := newWorld(f, shop, office)
	k := w.socket(f, "shop", "office")
	f.Fuzz(func(t *testing.T, msg []byte) {
		var q query
		result := q.parse(msg)
		out := w.exchange(k, bytes.Clone(msg))
		if result == unanswerable {
			if len(out) > 0 {
				t.Fatalf("answer %x", out)
			}
			return
		}
		if len(out) > q.udpBytes || !bytes.Equal(out[:2], msg[:2]) || out[2]&0x80 == 0 || !bytes.Equal(out[questionAt:q.end], msg[questionAt:q.end]) {
			t.Fatalf("answer %x", out)
		}
		var m dnsmessage.Message
		if err := m.Unpack(out); err != nil && !dotted(&q) {
			t.Fatalf("answer %x: %v", out, err)
		}
		compareParsers(t, msg, &q, result)
	})
}

// dotted reports whether a label of the name has a dot, which dnsmessage refuses.
func dotted(q *query) bool { return bytes.ContainsRune(q.name(), '.') }

// compareParsers compares a parsed query with what dnsmessage reads.
func compareParsers(t *testing.T, msg []byte, q *query, result parsed) {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	if err != nil || h.Response {
		t.Fatalf("parsed what dnsmessage does not: %v", err)
	}
	if result != valid || dotted(q) {
		return
	}
	only, err := p.Question()
	if err != nil || binary.BigEndian.Uint16(msg[4:]) != 1 {
		t.Fatalf("parsed what dnsmessage does not: %v", err)
	}
	w, _ := wireName(strings.TrimSuffix(only.Name.String(), "."))
	if plain, err := wireName(strings.ToLower(strings.TrimSuffix(only.Name.String(), "."))); err == nil && plain != string(q.name()) {
		t.Errorf("name %q, dnsmessage reads %q (%q)", q.name(), only.Name, w)
	}
	if only.Type != q.typ || only.Class != q.class {
		t.Errorf("type %v, class %v; dnsmessage reads %v", q.typ, q.class, only)
	}
	if err := errors.Join(p.SkipAllQuestions(), p.SkipAllAnswers(), p.SkipAllAuthorities()); err != nil {
		t.Fatalf("parsed what dnsmessage does not: %v", err)
	}
	edns := 0
	for {
		r, err := p.AdditionalHeader()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			break
		}
		if err != nil {
			return // a compressed name that leads nowhere: only its length is checked here
		}
		if r.Type == dnsmessage.TypeOPT && r.Name.String() == "." {
			edns++
		}
		if p.SkipAdditional() != nil {
			return
		}
	}
	if (edns > 0) != q.edns {
		t.Errorf("EDNS %t, dnsmessage finds %d records", q.edns, edns)
	}
}

// FuzzRequest parses any line of a controller.
func FuzzRequest(f *testing.F) {
	for _, line := range []string{
		`{"version":1,"do":"state"}`, `{"version":1,"do":"set","name":"shop","change":{"set":[{"name":"web","addrs":["192.0.2.1"]}]}}`,
		`{"version":1,"do":"replace","network":{"name":"x","domain":"y.z","subnets":["192.0.2.0/24"],"upstream":["192.0.2.53:53"]}}`,
		`{"version":1,"do":"serve","socket":{"id":"x","networks":["shop"]}}`, `{"version":2}`, `{`, `[]`,
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		r, err := parseRequest(line)
		if err != nil {
			return
		}
		s := newServer(Config{})
		defer s.close()
		if err := s.replace(shop); err != nil {
			t.Fatal(err)
		}
		if r.Do == opWatch {
			return
		}
		var a response
		_ = s.carryOut(r, nil, &a)
	})
}
