package dns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"cleat/internal/dnsname"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	// Without EDNS, an answer over UDP has at most 512 bytes (RFC 1035 section
	// 4.2.1).
	plainUDPBytes = 512
	maxMessage    = 1 << 16
	// Servers are told that we take so much over UDP: more would come in fragments,
	// which can be forged one by one (RFC 9715; the DNS flag day of 2020 has the
	// number).
	maxUDPAnswer = 1232
	// Questions are short: a name of 255 bytes, and options.
	maxQuestion = 4096
	// Longer chains of CNAMEs are not followed; resolvers give up earlier.
	maxChain = 16
	// Synthetic answers hold as long as the network does, but need not be kept.
	syntheticTTL = 60 // seconds
)

// The types of zone transfers (RFC 5936, RFC 1995), and of any type.
const (
	typeIXFR = dnsmessage.Type(251)
	typeAXFR = dnsmessage.TypeAXFR
)

// question is what the guest wants to know.
type question struct {
	id       uint16
	header   dnsmessage.Header
	q        dnsmessage.Question
	name     string // lower case, without the final dot
	edns     bool
	dnssec   bool // the guest wants signatures (RFC 3225)
	udpBytes int  // that the guest takes over UDP
}

// errNoQuestion says that a message must not be answered at all: it may be an
// answer itself, and two who answer answers never stop.
var errNoQuestion = errors.New("not a question")

// rcodeError is a question that is answered by a code alone.
type rcodeError dnsmessage.RCode

func (e rcodeError) Error() string { return dnsmessage.RCode(e).String() }

// parseQuestion reads what the guest sent. The error is errNoQuestion or an
// rcodeError; with the latter, as much of the question is set as was read.
func parseQuestion(msg []byte) (question, error) {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	if err != nil || h.Response {
		return question{}, errNoQuestion
	}
	q := question{id: h.ID, header: h, udpBytes: plainUDPBytes}
	if h.OpCode != 0 {
		return q, rcodeError(dnsmessage.RCodeNotImplemented)
	}
	malformed := rcodeError(dnsmessage.RCodeFormatError)
	only, n := questions(&p)
	if n != 1 || len(msg) > maxQuestion {
		return q, malformed
	}
	q.q = only
	q.name = plain(q.q.Name)
	if p.SkipAllAnswers() != nil || p.SkipAllAuthorities() != nil {
		return q, malformed
	}
	for {
		r, err := p.AdditionalHeader()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			break
		}
		if err != nil || p.SkipAdditional() != nil {
			return q, malformed
		}
		if r.Type == dnsmessage.TypeOPT {
			q.edns, q.dnssec, q.udpBytes = true, r.DNSSECAllowed(), min(max(int(r.Class), plainUDPBytes), udpBuffer)
		}
	}
	if q.q.Type == typeAXFR || q.q.Type == typeIXFR {
		return q, rcodeError(dnsmessage.RCodeRefused)
	}
	return q, nil
}

// questions reads the questions of a message up to the second: the first, and how
// many there are (2 stands for more), or -1 where one can't be read.
func questions(p *dnsmessage.Parser) (first dnsmessage.Question, n int) {
	for n = range 3 {
		q, err := p.Question()
		switch {
		case errors.Is(err, dnsmessage.ErrSectionDone):
			return first, n
		case err != nil:
			return first, -1
		case n == 0:
			first = q
		}
	}
	return first, n
}

// plain returns a name in the form that rules have, with everything escaped that
// can't be printed.
func plain(n dnsmessage.Name) string { return dnsname.Of(n.String()) }

// key is equal for questions that have the same answer, but for id and case.
func (q *question) key(stream bool) string {
	return fmt.Sprint(q.name, " ", uint16(q.q.Type), uint16(q.q.Class), q.header.RecursionDesired,
		q.header.AuthenticData, q.header.CheckingDisabled, q.edns, q.dnssec, min(q.udpBytes, maxUDPAnswer), stream)
}

// query is a question as a server gets it.
type query struct {
	id    uint16
	about *question
}

// message is the question made anew, behind some bytes of room. What else the guest
// put into its message (records, options of EDNS) goes no further: another reader
// could take it for something that we have not judged.
func (a *query) message(room int) ([]byte, error) {
	q := a.about
	b := dnsmessage.NewBuilder(make([]byte, room, room+plainUDPBytes), dnsmessage.Header{
		ID: a.id, RecursionDesired: q.header.RecursionDesired, AuthenticData: q.header.AuthenticData, CheckingDisabled: q.header.CheckingDisabled,
	})
	err := errors.Join(b.StartQuestions(), b.Question(q.q))
	if err == nil && q.edns {
		var h dnsmessage.ResourceHeader
		err = errors.Join(h.SetEDNS0(min(q.udpBytes, maxUDPAnswer), dnsmessage.RCodeSuccess, q.dnssec), b.StartAdditionals(), b.OPTResource(h, dnsmessage.OPTResource{}))
	}
	if err != nil {
		return nil, err
	}
	return b.Finish()
}

// questionAt is where a message has its first question: behind the header (RFC 1035
// section 4.1.1).
const questionAt = 12

// lengthBytes precede a message over TCP (RFC 1035 section 4.2.2).
const lengthBytes = 2

// frame is a server's answer for the guest, behind its length as TCP has it: under
// the guest's id, with the name as the guest wrote it.
func (q *question) frame(raw []byte) []byte {
	out := make([]byte, lengthBytes+len(raw))
	binary.BigEndian.PutUint16(out, uint16(len(raw)))
	msg := out[lengthBytes:]
	copy(msg, raw)
	binary.BigEndian.PutUint16(msg, q.id)
	name := appendName(nil, q.q.Name)
	if end := questionAt + len(name); len(msg) >= end && dnsname.Equal(string(msg[questionAt:end]), string(name)) {
		copy(msg[questionAt:], name)
	}
	return out
}

// appendName appends a name in the form of the wire (RFC 1035 section 3.1). The
// lengths of labels are below 64, so they are no letters.
func appendName(b []byte, n dnsmessage.Name) []byte {
	for label := range strings.SplitSeq(strings.TrimSuffix(n.String(), "."), ".") {
		if label != "" {
			b = append(append(b, byte(len(label))), label...)
		}
	}
	return append(b, 0)
}

// framed puts the length in front of a message, as TCP has it.
func framed(msg []byte) []byte {
	return append(binary.BigEndian.AppendUint16(make([]byte, 0, lengthBytes+len(msg)), uint16(len(msg))), msg...)
}

// reply is an answer without records, or one with records of our own.
func (q *question) reply(code dnsmessage.RCode, records ...dnsmessage.Resource) []byte {
	m := dnsmessage.Message{
		Header: dnsmessage.Header{
			ID: q.id, Response: true, OpCode: q.header.OpCode, RCode: code,
			RecursionDesired: q.header.RecursionDesired, RecursionAvailable: true,
		},
		Answers: records,
	}
	if q.q.Name.Length > 0 {
		m.Questions = []dnsmessage.Question{q.q}
	}
	if q.edns {
		var h dnsmessage.ResourceHeader
		if err := h.SetEDNS0(maxQuestion, code, false); err == nil {
			m.Additionals = []dnsmessage.Resource{{Header: h, Body: &dnsmessage.OPTResource{}}}
		}
	}
	b, err := m.Pack()
	if err != nil { // a name that can be read but not written
		m.Questions, m.Answers = nil, nil
		b, _ = m.Pack()
	}
	return b
}

// truncated is an answer that is longer than the guest takes, cut to its header
// and question: the guest asks again over TCP.
func (q *question) truncated(answer []byte) []byte {
	var p dnsmessage.Parser
	h, err := p.Start(answer)
	if err != nil {
		return q.reply(dnsmessage.RCodeServerFailure)
	}
	h.ID, h.Truncated = q.id, true
	b, err := (&dnsmessage.Message{Header: h, Questions: []dnsmessage.Question{q.q}}).Pack()
	if err != nil {
		return q.reply(dnsmessage.RCodeServerFailure)
	}
	return b
}

// synthetic is the answer for a name of ours.
func (q *question) synthetic(addrs []netip.Addr) []byte {
	var records []dnsmessage.Resource
	h := dnsmessage.ResourceHeader{Name: q.q.Name, Class: dnsmessage.ClassINET, TTL: syntheticTTL}
	for _, a := range addrs {
		if h.Type = typeOf(a); q.q.Type != h.Type && q.q.Type != dnsmessage.TypeALL {
			continue
		}
		var body dnsmessage.ResourceBody = &dnsmessage.AAAAResource{AAAA: a.As16()}
		if a.Is4() {
			body = &dnsmessage.AResource{A: a.As4()}
		}
		records = append(records, dnsmessage.Resource{Header: h, Body: body})
	}
	return q.reply(dnsmessage.RCodeSuccess, records...)
}

// typeOf is the type of the record that holds an address.
func typeOf(a netip.Addr) dnsmessage.Type {
	if a.Is4() {
		return dnsmessage.TypeA
	}
	return dnsmessage.TypeAAAA
}

// answer is what a server said, as far as it matters here.
type answer struct {
	code      dnsmessage.RCode
	truncated bool
	records   bool // there are any in the answer section
	// addrs are those that the question's name leads to, and ttl how long that
	// holds.
	addrs []netip.Addr
	ttl   time.Duration
}

// Errors of answers.
var (
	// errForged is a message that is no answer to the question that was asked.
	errForged = errors.New("not an answer to the question")
	// errMalformed is an answer that can't be read to its end.
	errMalformed = errors.New("malformed answer")
)

// parseAnswer checks that a message answers a question, and reads it. The error is
// errForged or errMalformed.
func parseAnswer(msg []byte, to *query) (answer, error) {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	if err != nil || !h.Response || h.ID != to.id || h.OpCode != 0 {
		return answer{}, errForged
	}
	a := answer{code: h.RCode, truncated: h.Truncated}
	repeated, n := questions(&p)
	switch n {
	case 0:
		// Servers that can't read a question may not repeat it; then they can't
		// have answered it either.
		if h.RCode == dnsmessage.RCodeSuccess || h.RCode == dnsmessage.RCodeNameError {
			return answer{}, errForged
		}
	case 1:
		if !sameQuestion(repeated, to.about.q) {
			return answer{}, errForged
		}
	default:
		return answer{}, errForged
	}
	if err := a.parseRecords(&p, to.about); err != nil {
		return answer{}, errMalformed
	}
	return a, nil
}

// sameQuestion compares without regard to case: some servers change it.
func sameQuestion(a, b dnsmessage.Question) bool {
	return a.Type == b.Type && a.Class == b.Class && dnsname.Equal(a.Name.String(), b.Name.String())
}

// parseRecords reads the rest of an answer.
func (a *answer) parseRecords(p *dnsmessage.Parser, q *question) error {
	var c chain
	for {
		h, err := p.AnswerHeader()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			break
		}
		if err != nil {
			return err
		}
		a.records = true
		if err := c.add(p, h); err != nil {
			return err
		}
	}
	if err := p.SkipAllAuthorities(); err != nil {
		return err
	}
	if err := p.SkipAllAdditionals(); err != nil {
		return err
	}
	wanted := q.q.Type == dnsmessage.TypeA || q.q.Type == dnsmessage.TypeAAAA || q.q.Type == dnsmessage.TypeALL
	if a.code == dnsmessage.RCodeSuccess && wanted && q.q.Class == dnsmessage.ClassINET {
		a.addrs, a.ttl = c.follow(q.name)
	}
	return nil
}

// chain are the CNAMEs and addresses of an answer by their owners.
type chain struct {
	aliases map[string]alias
	addrs   map[string][]netip.Addr
	ttl     map[string]uint32 // seconds, the least of an owner's addresses
}

type alias struct {
	to  string
	ttl uint32 // seconds
}

// add reads a record's body, where it is one that matters.
func (c *chain) add(p *dnsmessage.Parser, h dnsmessage.ResourceHeader) error {
	var a netip.Addr
	switch {
	case h.Class == dnsmessage.ClassINET && h.Type == dnsmessage.TypeCNAME:
		r, err := p.CNAMEResource()
		if err != nil {
			return err
		}
		if c.aliases == nil {
			c.aliases = map[string]alias{}
		}
		if owner := plain(h.Name); c.aliases[owner].to == "" {
			c.aliases[owner] = alias{plain(r.CNAME), h.TTL}
		}
		return nil
	case h.Class == dnsmessage.ClassINET && h.Type == dnsmessage.TypeA:
		r, err := p.AResource()
		if err != nil {
			return err
		}
		a = netip.AddrFrom4(r.A)
	case h.Class == dnsmessage.ClassINET && h.Type == dnsmessage.TypeAAAA:
		r, err := p.AAAAResource()
		if err != nil {
			return err
		}
		a = netip.AddrFrom16(r.AAAA)
	default:
		return p.SkipAnswer()
	}
	if c.addrs == nil {
		c.addrs, c.ttl = map[string][]netip.Addr{}, map[string]uint32{}
	}
	owner := plain(h.Name)
	if len(c.addrs[owner]) == 0 || h.TTL < c.ttl[owner] {
		c.ttl[owner] = h.TTL
	}
	c.addrs[owner] = append(c.addrs[owner], a)
	return nil
}

// follow finds the addresses that a name leads to, by nothing but the CNAMEs
// that begin at it, and how long the shortest-lived link of the way holds.
func (c *chain) follow(name string) ([]netip.Addr, time.Duration) {
	ttl := ^uint32(0)
	for range maxChain {
		if addrs := c.addrs[name]; len(addrs) > 0 {
			return addrs, time.Duration(min(ttl, c.ttl[name])) * time.Second
		}
		next, ok := c.aliases[name]
		if !ok {
			break
		}
		name, ttl = next.to, min(ttl, next.ttl)
	}
	return nil, 0
}
