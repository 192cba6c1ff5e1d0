package names

import (
	"encoding/binary"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	// questionAt is the offset of the question: the size of the header (RFC 1035 section
	// 4.1.1).
	questionAt = 12
	// plainUDPBytes is the longest answer over UDP without EDNS (RFC 1035 section 4.2.1),
	// and ednsUDPBytes with it: more would arrive in fragments on a path with an MTU of 1,280
	// bytes (RFC 9715).
	plainUDPBytes = 512
	ednsUDPBytes  = 1232
	maxMessage    = 1<<16 - 1
	// pointer marks a compressed name; the offset is in the other bits (RFC 1035 section
	// 4.1.4).
	pointer = 0xc000
	// recordHead is the size of a record's type, class, TTL and length.
	recordHead = 10
	// optBytes is the size of an OPT record without options (RFC 6891 section 6.1.2).
	optBytes = 1 + recordHead
)

// Bits of the third and fourth byte of the header.
const (
	bitResponse      = 1 << 15
	maskOpCode       = 0xf << 11
	bitAuthoritative = 1 << 10
	bitTruncated     = 1 << 9
	bitRD            = 1 << 8
	bitRA            = 1 << 7
	bitCD            = 1 << 4
)

// query is a parsed query. It is reused for the next one.
type query struct {
	key      [maxName]byte // the queried name in wire format, in lower case
	size     int           // bytes of the name
	labels   int
	typ      dnsmessage.Type
	class    dnsmessage.Class
	end      int // offset behind the question; questionAt if there is none
	edns     bool
	dnssec   bool // the DO bit, which the answer repeats (RFC 3225)
	version  byte // of EDNS
	udpBytes int  // the longest answer over UDP
}

// name returns the queried name in wire format, in lower case.
func (q *query) name() []byte { return q.key[:q.size] }

// parsed is the result of parsing a message.
type parsed int

const (
	valid          parsed = iota
	unanswerable          // an answer, or too short; answering answers would never stop
	malformed             // FORMERR
	notImplemented        // NOTIMP
)

// parse parses a message. After unanswerable, q is meaningless.
func (q *query) parse(msg []byte) parsed {
	if len(msg) < questionAt {
		return unanswerable
	}
	flags := binary.BigEndian.Uint16(msg[2:])
	if flags&bitResponse != 0 {
		return unanswerable
	}
	q.size, q.labels, q.end = 0, 0, questionAt
	q.edns, q.dnssec, q.version, q.udpBytes = false, false, 0, plainUDPBytes
	if flags&maskOpCode != 0 {
		return notImplemented
	}
	if binary.BigEndian.Uint16(msg[4:]) != 1 || !q.parseQuestion(msg) {
		return malformed
	}
	at := q.end
	others := int(binary.BigEndian.Uint16(msg[6:])) + int(binary.BigEndian.Uint16(msg[8:]))
	for range others {
		if at = skipRecord(msg, at); at < 0 {
			return malformed
		}
	}
	for range int(binary.BigEndian.Uint16(msg[10:])) {
		next := skipRecord(msg, at)
		if next < 0 || isOPT(msg[at:]) && !q.parseOPT(msg[at:]) {
			return malformed
		}
		at = next
	}
	return valid
}

// parseQuestion parses the question. A compressed name has nothing to refer to, and is an
// error.
func (q *query) parseQuestion(msg []byte) bool {
	for at := questionAt; at < len(msg); q.labels++ {
		n := int(msg[at])
		if n > 63 || at+1+n > len(msg) || q.size+1+n >= maxName && n > 0 {
			return false
		}
		q.key[q.size] = byte(n)
		for i, c := range msg[at+1 : at+1+n] {
			if 'A' <= c && c <= 'Z' {
				c += 'a' - 'A'
			}
			q.key[q.size+1+i] = c
		}
		q.size += 1 + n
		at += 1 + n
		if n == 0 {
			if at+4 > len(msg) {
				return false
			}
			q.typ = dnsmessage.Type(binary.BigEndian.Uint16(msg[at:]))
			q.class = dnsmessage.Class(binary.BigEndian.Uint16(msg[at+2:]))
			q.end = at + 4
			return true
		}
	}
	return false
}

// skipRecord returns the offset behind a record, or -1.
func skipRecord(msg []byte, at int) int {
	for {
		if at >= len(msg) {
			return -1
		}
		n := int(msg[at])
		at++
		if n >= pointer>>8 {
			at++
			break
		}
		if n > 63 {
			return -1
		}
		if n == 0 {
			break
		}
		at += n
	}
	if at+recordHead > len(msg) {
		return -1
	}
	at += recordHead + int(binary.BigEndian.Uint16(msg[at+recordHead-2:]))
	if at > len(msg) {
		return -1
	}
	return at
}

// isOPT reports whether a record, which skipRecord has accepted, is an OPT record.
func isOPT(record []byte) bool {
	return record[0] == 0 && dnsmessage.Type(binary.BigEndian.Uint16(record[1:])) == dnsmessage.TypeOPT
}

// parseOPT parses an OPT record (RFC 6891 section 6.1). A second one is an error.
func (q *query) parseOPT(record []byte) bool {
	if q.edns {
		return false
	}
	q.edns, q.version, q.dnssec = true, record[6], record[7]&0x80 != 0
	q.udpBytes = min(max(int(binary.BigEndian.Uint16(record[3:])), plainUDPBytes), ednsUDPBytes)
	return true
}

// badVersion is the upper part of the extended response code BADVERS (RFC 6891 section 9).
const badVersion = 1

// reply is an answer to a query.
type reply struct {
	code  dnsmessage.RCode
	ours  bool   // the name is ours: the answer is authoritative
	set   *rrset // nil: no records
	upper byte   // of the extended response code
}

// appendReply appends an answer of at most limit bytes to out, which is empty. msg is the
// query that q was parsed from. It reports whether all records fit.
func (q *query) appendReply(out, msg []byte, r reply, limit int) ([]byte, bool) {
	out = append(out, msg[:q.end]...)
	flags := binary.BigEndian.Uint16(msg[2:])&(maskOpCode|bitRD|bitCD) | bitResponse | bitRA | uint16(r.code)
	if r.ours {
		flags |= bitAuthoritative
	}
	if q.edns {
		limit -= optBytes
	}
	answers, authorities, complete := 0, 0, true
	switch {
	case r.set != nil:
		out, answers, complete = r.set.appendTo(out, limit)
	case r.ours && q.size > 0:
		out = q.appendSOA(out)
		authorities = 1
	}
	if !complete {
		flags |= bitTruncated
	}
	binary.BigEndian.PutUint16(out[2:], flags)
	questions := 1
	if q.end == questionAt {
		questions = 0
	}
	putCounts(out, questions, answers, authorities, 0)
	if q.edns {
		out = append(out, 0, 0, byte(dnsmessage.TypeOPT), ednsUDPBytes>>8, ednsUDPBytes&0xff, r.upper, 0, 0, 0, 0, 0)
		if q.dnssec {
			out[len(out)-4] = 0x80
		}
		out[11] = 1
	}
	return out, complete
}

func putCounts(msg []byte, counts ...int) {
	for i, n := range counts {
		binary.BigEndian.PutUint16(msg[4+2*i:], uint16(n))
	}
}

// appendTo appends the records, beginning with the next one in turn unless they have an order, that fit
// into limit. It returns their number, and whether these are all.
func (s *rrset) appendTo(out []byte, limit int) ([]byte, int, bool) {
	first := 0
	if len(s.records) > 1 && !s.inOrder {
		first = int(s.turn.Add(1)-1) % len(s.records)
	}
	for i := range s.records {
		r := s.records[(first+i)%len(s.records)]
		if len(out)+len(r) > limit {
			return out, i, false
		}
		out = append(out, r...)
	}
	return out, len(s.records), true
}

// appendSOA appends an SOA record for the parent of the queried name. Its TTL and minimum of 0
// keep negative answers out of caches (RFC 2308 section 5).
func (q *query) appendSOA(out []byte) []byte {
	parent := questionAt
	if q.size > 1 {
		parent += 1 + int(q.key[0])
	}
	high, low := byte((pointer|parent)>>8), byte(parent)
	return append(out, high, low, 0, byte(dnsmessage.TypeSOA), 0, byte(dnsmessage.ClassINET), 0, 0, 0, 0,
		0, 2+1+20, // RDLENGTH
		high, low, 0, // the primary server; no mailbox
		0, 0, 0, 1, 0, 0, 0x0e, 0x10, 0, 0, 0x02, 0x58, 0, 0x01, 0x51, 0x80, 0, 0, 0, 0) // serial 1, refresh 1 h, retry 10 min, expire 1 d, minimum 0
}
