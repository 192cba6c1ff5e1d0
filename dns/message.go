package dns

import (
	"cmp"
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
	// plainUDPBytes is the longest answer over UDP without EDNS (RFC 1035 section 4.2.1).
	plainUDPBytes = 512
	maxMessage    = 1 << 16
	// maxUDPAnswer is the UDP size that we announce to servers. More would arrive in
	// fragments, which can be forged individually (RFC 9715; the number comes from the
	// DNS flag day of 2020).
	maxUDPAnswer = 1232
	// maxQuestion is the longest query: a name of 255 bytes, and options.
	maxQuestion = 4096
	// maxChain is the longest chain of CNAMEs that is followed; resolvers give up
	// earlier.
	maxChain = 16
	// syntheticTTL is the TTL of local answers. They are valid as long as the network,
	// but need not be cached long.
	syntheticTTL = 60 // seconds
)

// The query types of zone transfers (RFC 5936, RFC 1995).
const (
	typeIXFR = dnsmessage.Type(251)
	typeAXFR = dnsmessage.TypeAXFR
)

// question is a parsed query of the guest.
type question struct {
	id       uint16
	header   dnsmessage.Header
	q        dnsmessage.Question
	name     string // lower case, without the final dot
	edns     bool
	dnssec   bool // the guest wants signatures (RFC 3225)
	udpBytes int  // the longest answer that the guest accepts over UDP
}

// errNoQuestion means that a message must not be answered: it may be an answer itself,
// and two programs that answer answers never stop.
var errNoQuestion = errors.New("not a question")

// rcodeError is the response code for a query that is answered by a code alone.
type rcodeError dnsmessage.RCode

func (e rcodeError) Error() string { return dnsmessage.RCode(e).String() }

// parseQuestion parses a message of the guest. The error is errNoQuestion or an
// rcodeError; with the latter, the question holds what could be parsed.
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

// questions reads the questions of a message up to the second. It returns the first, and
// their number (2 stands for more), or -1 if one is malformed.
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

// plain returns a name as rules have it, with unprintable bytes escaped.
func plain(n dnsmessage.Name) string { return dnsname.Of(n.String()) }

// key is equal for queries that have the same answer, apart from id and case.
func (q *question) key(stream bool) string {
	return fmt.Sprint(q.name, " ", uint16(q.q.Type), uint16(q.q.Class), q.header.RecursionDesired,
		q.header.AuthenticData, q.header.CheckingDisabled, q.edns, q.dnssec, min(q.udpBytes, maxUDPAnswer), stream)
}

// query is a query as sent to a server.
type query struct {
	id    uint16
	about *question
}

// message builds the query behind room free bytes. Whatever else the guest put into its
// message (records, EDNS options) is left out: another parser could read something into
// it that was not checked.
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

// questionAt is the offset of the first question in a message: the size of the header
// (RFC 1035 section 4.1.1).
const questionAt = 12

// frame returns a server's answer for the guest, with the TCP length prefix, the guest's
// id, and the name in the guest's spelling.
func (q *question) frame(raw []byte) []byte {
	out := make([]byte, LengthBytes+len(raw))
	binary.BigEndian.PutUint16(out, uint16(len(raw)))
	msg := out[LengthBytes:]
	copy(msg, raw)
	binary.BigEndian.PutUint16(msg, q.id)
	name := appendName(nil, q.q.Name)
	if end := questionAt + len(name); len(msg) >= end && dnsname.Equal(string(msg[questionAt:end]), string(name)) {
		copy(msg[questionAt:], name)
	}
	return out
}

// appendName appends a name in wire format (RFC 1035 section 3.1). Lengths of labels are
// below 64, so they cannot be confused with letters.
func appendName(b []byte, n dnsmessage.Name) []byte {
	for label := range strings.SplitSeq(strings.TrimSuffix(n.String(), "."), ".") {
		if label != "" {
			b = append(append(b, byte(len(label))), label...)
		}
	}
	return append(b, 0)
}

// framed puts the TCP length prefix in front of a message.
func framed(msg []byte) []byte {
	return append(binary.BigEndian.AppendUint16(make([]byte, 0, LengthBytes+len(msg)), uint16(len(msg))), msg...)
}

// reply returns an answer without records, or with local records.
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
	if err != nil { // a name that parses but cannot be packed
		m.Questions, m.Answers = nil, nil
		b, _ = m.Pack()
	}
	return b
}

// truncated returns an answer that is too long for the guest, cut to its header and
// question. The guest asks again over TCP.
func (q *question) truncated(answer []byte) []byte {
	var p dnsmessage.Parser
	h, _ := p.Start(answer) // parseAnswer has parsed it
	h.ID, h.Truncated = q.id, true
	b, err := (&dnsmessage.Message{Header: h, Questions: []dnsmessage.Question{q.q}}).Pack()
	if err != nil {
		return q.reply(dnsmessage.RCodeServerFailure)
	}
	return b
}

// synthetic returns the answer for a local name.
func (q *question) synthetic(addrs []netip.Addr) []byte {
	var records []dnsmessage.Resource
	h := dnsmessage.ResourceHeader{Name: q.q.Name, Class: dnsmessage.ClassINET, TTL: syntheticTTL}
	for _, a := range addrs {
		var body dnsmessage.ResourceBody = &dnsmessage.AAAAResource{AAAA: a.As16()}
		h.Type = dnsmessage.TypeAAAA
		if a.Is4() {
			body, h.Type = &dnsmessage.AResource{A: a.As4()}, dnsmessage.TypeA
		}
		if q.q.Type == h.Type || q.q.Type == dnsmessage.TypeALL {
			records = append(records, dnsmessage.Resource{Header: h, Body: body})
		}
	}
	return q.reply(dnsmessage.RCodeSuccess, records...)
}

// answer is a parsed answer.
type answer struct {
	code      dnsmessage.RCode
	truncated bool
	records   bool // the answer section is not empty
	// addrs are the addresses of the queried name, and ttl is how long they are valid.
	addrs []netip.Addr
	ttl   time.Duration
}

// Errors of answers.
var (
	// errForged means that a message is not an answer to our query.
	errForged = errors.New("not an answer to the question")
	// errMalformed means that an answer cannot be parsed completely.
	errMalformed = errors.New("malformed answer")
)

// parseAnswer checks that a message answers a query, and parses it. The error is
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
		// A server that cannot parse a query may omit the question. It cannot have
		// answered the query then.
		if h.RCode == dnsmessage.RCodeSuccess || h.RCode == dnsmessage.RCodeNameError {
			return answer{}, errForged
		}
	case 1:
		asked := to.about.q
		if repeated.Type != asked.Type || repeated.Class != asked.Class ||
			!dnsname.Equal(repeated.Name.String(), asked.Name.String()) { // some servers change the case
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

// parseRecords parses the rest of an answer.
func (a *answer) parseRecords(p *dnsmessage.Parser, q *question) error {
	c := chain{aliases: map[string]alias{}, addrs: map[string][]netip.Addr{}, ttl: map[string]uint32{}}
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
	if err := cmp.Or(p.SkipAllAuthorities(), p.SkipAllAdditionals()); err != nil {
		return err
	}
	wanted := q.q.Type == dnsmessage.TypeA || q.q.Type == dnsmessage.TypeAAAA || q.q.Type == dnsmessage.TypeALL
	if a.code == dnsmessage.RCodeSuccess && wanted && q.q.Class == dnsmessage.ClassINET {
		a.addrs, a.ttl = c.follow(q.name)
	}
	return nil
}

// chain holds the CNAMEs and addresses of an answer, by owner.
type chain struct {
	aliases map[string]alias
	addrs   map[string][]netip.Addr
	ttl     map[string]uint32 // seconds, the smallest of an owner's addresses
}

type alias struct {
	to  string
	ttl uint32 // seconds
}

// add parses a record if it is a CNAME or an address, and skips it otherwise.
func (c *chain) add(p *dnsmessage.Parser, h dnsmessage.ResourceHeader) error {
	var a netip.Addr
	switch {
	case h.Class == dnsmessage.ClassINET && h.Type == dnsmessage.TypeCNAME:
		r, err := p.CNAMEResource()
		if err != nil {
			return err
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
	owner := plain(h.Name)
	if len(c.addrs[owner]) == 0 || h.TTL < c.ttl[owner] {
		c.ttl[owner] = h.TTL
	}
	c.addrs[owner] = append(c.addrs[owner], a)
	return nil
}

// follow returns the addresses that a name leads to by the CNAMEs that begin at it, and
// the smallest TTL on the way.
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
