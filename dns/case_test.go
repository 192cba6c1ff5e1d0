package dns

import (
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// Names that package strings equates with bank.example, host.cleat.internal, or each
// other.
const (
	kelvin   = "ban\u212a.example"
	longS    = "ho\u017ft.cleat.internal"
	dottedI  = "s\u0130te.example"
	invalid1 = "x\xff.example"
	invalid2 = "x\xfe.example"
)

// Only ASCII letters match in either case (RFC 4343): a name that Unicode folds to one in
// a rule, or to a local one, is another name. Unprintable bytes are escaped.
func TestQueriesFoldOnlyASCII(t *testing.T) {
	for _, c := range []struct{ name, ask, want string }{
		{"ASCII", "BaNk.Example", "bank.example"},
		{"KELVIN SIGN", kelvin, `ban\226\132\170.example`},
		{"long s", longS, `ho\197\191t.cleat.internal`},
		{"I with a dot", dottedI, `s\196\176te.example`},
		{"not UTF-8", invalid1, `x\255.example`},
		{"NUL", "bank\x00.example", `bank\000.example`},
		{"a line of its own, in red", "bank\n\x1b[31m.example", `bank\010\027[31m.example`},
		{"an escape", `bank\046example`, `bank\092046example`},
		{"a space", "a b.example", `a\032b.example`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s fakes
			s.set("192.0.2.1", func(_ string, q []byte) []byte {
				m := unpack(t, q)
				m.Response = true
				m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Class: dnsmessage.ClassINET, TTL: 60}, Body: &dnsmessage.AResource{A: [4]byte{198, 51, 100, 1}}}}
				return pack(t, m)
			})
			var mu sync.Mutex
			var learned, asked []string
			f := newForwarder(t, Config{
				Names: map[string][]netip.Addr{"host.cleat.internal": {netip.MustParseAddr("10.0.2.2")}},
				Learn: func(name string, _ []netip.Addr, _ time.Duration) {
					mu.Lock()
					defer mu.Unlock()
					learned = append(learned, name)
				},
				MayAsk: func(name string) bool {
					mu.Lock()
					defer mu.Unlock()
					asked = append(asked, name)
					return true
				},
			}, &s)
			m := unpack(t, exchangeUDP(t, f, ask(t, 7, c.ask, dnsmessage.TypeA)))
			if len(m.Answers) != 1 || m.Answers[0].Body.(*dnsmessage.AResource).A != [4]byte{198, 51, 100, 1} {
				t.Errorf("answer %s", m.GoString())
			}
			if want := []string{c.want}; !slices.Equal(learned, want) || !slices.Equal(asked, want) {
				t.Errorf("learned %q, asked for %q, want %q", learned, asked, want)
			}
		})
	}
}

// An answer whose name equals the query's only in Unicode does not count, and its CNAMEs
// and addresses are ignored.
func TestAnswersFoldOnlyASCII(t *testing.T) {
	const id = 7
	for _, c := range []struct{ name, asked, answered string }{
		{"KELVIN SIGN", "bank.example", kelvin},
		{"long s", "host.cleat.internal", longS},
		{"not UTF-8", invalid1, invalid2},
	} {
		t.Run(c.name, func(t *testing.T) {
			msg := ask(t, id, c.asked, dnsmessage.TypeA)
			q, err := parseQuestion(msg)
			if err != nil {
				t.Fatal(err)
			}
			other := ask(t, id, c.answered, dnsmessage.TypeA)
			if _, err := parseAnswer(answerTo(t, other, dnsmessage.RCodeSuccess, c.answered+" A 198.51.100.66"), &query{id, &q}); err != errForged {
				t.Errorf("an answer to another question: %v", err)
			}
			for _, records := range [][]string{
				{c.answered + " A 198.51.100.66"},
				{c.answered + " CNAME a.example", "a.example A 198.51.100.66"},
				{c.asked + " CNAME a" + c.asked, "a" + c.answered + " A 198.51.100.66"},
			} {
				if a, err := parseAnswer(answerTo(t, msg, dnsmessage.RCodeSuccess, records...), &query{id, &q}); err != nil || len(a.addrs) > 0 {
					t.Errorf("%q: %v, %v", records, a.addrs, err)
				}
			}
		})
	}
}
