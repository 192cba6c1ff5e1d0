package names

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"cleat/internal/sys"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/dns/dnsmessage"
)

// world is a server without sockets of the kernel's: two networks that know different names.
type world struct {
	*server
	batch *batch
}

var shop = Network{
	Name: "shop", Subnets: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8:1::/64")}, NoForward: true,
	Endpoints: []Endpoint{
		{ID: "1", Name: "web", Aliases: []string{"www", "Front.End"}, Addrs: addrs("192.0.2.10", "2001:db8:1::10"),
			Ports: []Port{{Name: "http", Port: 8080}, {Protocol: "udp", Port: 443}}},
		{ID: "2", Name: "db", Aliases: []string{"pool"}, Addrs: addrs("192.0.2.20"), Ports: []Port{{Name: "sql", Port: 5432}}},
		{ID: "3", Name: "db2", Aliases: []string{"pool"}, Addrs: addrs("192.0.2.21", "192.0.2.22"), Ports: []Port{{Name: "sql", Port: 5433}}},
		{Name: "idle"},
		{Name: "vip1", Aliases: []string{"vip"}, Addrs: addrs("192.0.2.30")},
		{Name: "vip2", Aliases: []string{"vip"}, Addrs: addrs("192.0.2.30")},
	},
}

var office = Network{
	Name: "office", Domain: "office.internal", Subnets: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}, NoForward: true,
	Endpoints: []Endpoint{
		{Name: "printer", Addrs: addrs("198.51.100.7")},
		{Name: "web", Addrs: addrs("198.51.100.8")},
	},
}

// pods answers reverse queries as aardvark-dns does.
var pods = Network{
	Name: "pods", Domain: "dns.podman", AllReverse: true, Subnets: []netip.Prefix{netip.MustParsePrefix("198.18.0.0/24")}, NoForward: true,
	Endpoints: []Endpoint{{ID: "1", Name: "web", Aliases: []string{"www", "0123456789ab"}, Addrs: addrs("198.18.0.7")}},
}

func addrs(all ...string) (out []netip.Addr) {
	for _, a := range all {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func newWorld(t testing.TB, networks ...Network) *world {
	t.Helper()
	w := &world{newServer(Config{}), newBatch()}
	t.Cleanup(w.close)
	for _, n := range networks {
		if err := w.replace(n); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// socket returns a socket that sees networks. It can't send.
func (w *world) socket(t testing.TB, networks ...string) *socket {
	t.Helper()
	all, err := w.find(Socket{ID: "test", Networks: networks})
	if err != nil {
		t.Fatal(err)
	}
	k := &socket{server: w.server, inFlight: map[netip.Addr]int{}, clients: map[netip.Addr]int{}, stop: func() {}}
	k.see(Socket{}, all)
	return k
}

// exchange answers a message as received over UDP.
func (w *world) exchange(k *socket, msg []byte) []byte {
	return k.answer(w.batch, msg, sender("127.0.0.1"), nil)
}

// sender returns a client's address and port.
func sender(addr string) *sys.Address {
	a := sys.MakeAddress(netip.AddrPortFrom(netip.MustParseAddr(addr), 40000), false)
	return &a
}

// ask returns a query. name has no final dot.
func ask(t testing.TB, name string, typ dnsmessage.Type, edit ...func(*dnsmessage.Message)) []byte {
	t.Helper()
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 4711, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name + "."), Type: typ, Class: dnsmessage.ClassINET}},
	}
	for _, f := range edit {
		f(&m)
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// withEDNS adds an OPT record.
func withEDNS(size int, dnssec bool, version byte) func(*dnsmessage.Message) {
	return func(m *dnsmessage.Message) {
		var h dnsmessage.ResourceHeader
		if err := h.SetEDNS0(size, 0, dnssec); err != nil {
			panic(err)
		}
		h.TTL |= uint32(version) << 16
		m.Additionals = append(m.Additionals, dnsmessage.Resource{Header: h, Body: &dnsmessage.OPTResource{}})
	}
}

func unpack(t testing.TB, b []byte) dnsmessage.Message {
	t.Helper()
	var m dnsmessage.Message
	if err := m.Unpack(b); err != nil {
		t.Fatalf("unpack %x: %v", b, err)
	}
	return m
}

// show returns a message as text: the code, and the records without the order of their turns.
func show(m dnsmessage.Message) string {
	words := []string{strings.TrimPrefix(m.RCode.String(), "RCode")}
	var records []string
	for _, r := range m.Answers {
		records = append(records, showRecord(r))
	}
	slices.Sort(records)
	words = append(words, records...)
	for _, r := range m.Authorities {
		words = append(words, "authority "+showRecord(r))
	}
	return strings.Join(words, ", ")
}

func showRecord(r dnsmessage.Resource) string {
	switch b := r.Body.(type) {
	case *dnsmessage.AResource:
		return netip.AddrFrom4(b.A).String()
	case *dnsmessage.AAAAResource:
		return netip.AddrFrom16(b.AAAA).String()
	case *dnsmessage.PTRResource:
		return b.PTR.String()
	case *dnsmessage.SRVResource:
		return fmt.Sprintf("%d %d %d %s", b.Priority, b.Weight, b.Port, b.Target)
	case *dnsmessage.SOAResource:
		return fmt.Sprintf("SOA of %s for %d s", r.Header.Name, max(b.MinTTL, r.Header.TTL))
	}
	return fmt.Sprint(r)
}

func TestAnswers(t *testing.T) {
	w := newWorld(t, shop, office, pods)
	const (
		a, aaaa, srv, ptr = dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypeSRV, dnsmessage.TypePTR
		rootSOA, shopSOA  = "authority SOA of . for 0 s", "authority SOA of shop. for 0 s"
	)
	for _, tt := range []struct {
		name     string
		networks string
		query    string
		typ      dnsmessage.Type
		want     string
	}{
		{"name", "shop", "web", a, "Success, 192.0.2.10"},
		{"IPv6", "shop", "web", aaaa, "Success, 2001:db8:1::10"},
		{"with the network", "shop", "web.shop", a, "Success, 192.0.2.10"},
		{"alias", "shop", "www", a, "Success, 192.0.2.10"},
		{"alias with the network", "shop", "www.shop", aaaa, "Success, 2001:db8:1::10"},
		{"alias of two labels, in any case", "shop", "fRONT.end", a, "Success, 192.0.2.10"},
		{"any case", "shop", "WEB.Shop", a, "Success, 192.0.2.10"},
		{"shared alias", "shop", "pool", a, "Success, 192.0.2.20, 192.0.2.21, 192.0.2.22"},
		{"several addresses", "shop", "db2", a, "Success, 192.0.2.21, 192.0.2.22"},
		{"shared address", "shop", "vip", a, "Success, 192.0.2.30"},
		{"no address of the family", "shop", "db", aaaa, "Success, " + rootSOA},
		{"no address of the family, with the network", "shop", "db.shop", aaaa, "Success, " + shopSOA},
		{"no address at all", "shop", "idle", a, "Success, " + rootSOA},
		{"another type", "shop", "web", dnsmessage.TypeMX, "Success, " + rootSOA},
		{"the network itself", "shop", "shop", a, "Success, " + rootSOA},

		{"service by name", "shop", "_http._tcp.web", srv, "Success, 0 0 8080 web.shop."},
		{"service by number", "shop", "_8080._tcp.web.shop", srv, "Success, 0 0 8080 web.shop."},
		{"service of an alias", "shop", "_HTTP._TCP.www", srv, "Success, 0 0 8080 web.shop."},
		{"service over UDP", "shop", "_443._udp.web", srv, "Success, 0 0 443 web.shop."},
		{"service of several endpoints", "shop", "_sql._tcp.pool", srv, "Success, 0 0 5432 db.shop., 0 0 5433 db2.shop."},
		{"unknown service", "shop", "_smtp._tcp.web", srv, "Success, authority SOA of _tcp.web. for 0 s"},
		{"between the service and the name", "shop", "_tcp.web", a, "Success, authority SOA of web. for 0 s"},
		{"service of an unknown name", "shop", "_http._tcp.nosuch.shop", srv, "NameError, authority SOA of _tcp.nosuch.shop. for 0 s"},

		{"reverse", "shop", "10.2.0.192.in-addr.arpa", ptr, "Success, web.shop."},
		{"reverse IPv6", "shop", "0.1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.1.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa", ptr, "Success, web.shop."},
		{"reverse of a shared address", "shop", "30.2.0.192.in-addr.arpa", ptr, "Success, vip1.shop., vip2.shop."},
		{"reverse of an unknown address", "shop", "77.2.0.192.in-addr.arpa", ptr, "NameError, authority SOA of 2.0.192.in-addr.arpa. for 0 s"},
		{"reverse of the subnet", "shop", "2.0.192.in-addr.arpa", ptr, "Success, authority SOA of 0.192.in-addr.arpa. for 0 s"},
		{"reverse of another network's", "shop", "7.100.51.198.in-addr.arpa", ptr, "NameError, authority SOA of 100.51.198.in-addr.arpa. for 0 s"},
		{"reverse of a foreign address", "shop", "1.113.0.203.in-addr.arpa", ptr, "NameError"},

		{"unknown", "shop", "nosuch", a, "NameError"},
		{"unknown, with the network", "shop", "nosuch.shop", a, "NameError, " + shopSOA},
		{"another network's", "shop", "printer", a, "NameError"},
		{"another network's, with its domain", "shop", "printer.office.internal", a, "NameError"},
		{"same name on the other network", "office", "web", a, "Success, 198.51.100.8"},
		{"with the domain", "office", "printer.office.internal", a, "Success, 198.51.100.7"},
		{"with the network, whose domain is another", "office", "printer.office", a, "Success, 198.51.100.7"},
		{"unknown, with the domain", "office", "nosuch.office.internal", a, "NameError, authority SOA of office.internal. for 0 s"},
		{"reverse with the domain", "office", "7.100.51.198.in-addr.arpa", ptr, "Success, printer.office.internal."},

		{"reverse with all names", "pods", "7.0.18.198.in-addr.arpa", ptr, "Success, 0123456789ab., web., www."},

		{"first network", "shop office", "web", a, "Success, 192.0.2.10"},
		{"second network", "shop office", "printer", a, "Success, 198.51.100.7"},
		{"the other order", "office shop", "web", a, "Success, 198.51.100.8"},
		{"the first network has the name, but no such record", "office shop", "web", aaaa, "Success, " + rootSOA},

		{"localhost", "shop", "localhost", a, "Success, 127.0.0.1"},
		{"below localhost", "shop", "a.localhost", aaaa, "Success, ::1"},
		{"foreign", "shop", "example.com", a, "NameError"},
		{"the root", "shop", "", dnsmessage.TypeNS, "Success, " + rootSOA},
		{"ANY", "shop", "web", dnsmessage.TypeALL, "Refused"},
		{"AXFR", "shop", "shop", dnsmessage.TypeAXFR, "Refused"},
		{"IXFR", "shop", "shop", 251, "Refused"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := w.socket(t, strings.Fields(tt.networks)...)
			q := ask(t, tt.query, tt.typ)
			out := w.exchange(k, q)
			m := unpack(t, out)
			if d := cmp.Diff(tt.want, show(m)); d != "" {
				t.Error(d)
			}
			if !m.Response || !m.RecursionAvailable || !m.RecursionDesired || m.ID != 4711 || m.Truncated {
				t.Errorf("header %+v", m.Header)
			}
			if len(m.Questions) != 1 || m.Questions[0] != unpack(t, q).Questions[0] {
				t.Errorf("question %v", m.Questions)
			}
			for _, r := range m.Answers {
				if r.Header.TTL != ttl || r.Header.Name != m.Questions[0].Name || !m.Authoritative {
					t.Errorf("record %+v, authoritative %t", r.Header, m.Authoritative)
				}
			}
		})
	}
}

// A container can't ask at the gateway of a network that it is not on.
func TestStrangers(t *testing.T) {
	w := newWorld(t, shop, office)
	for _, tt := range []struct{ networks, client, want string }{
		{"shop", "192.0.2.99", "Success, 192.0.2.10"},
		{"shop", "2001:db8:1::99", "Success, 192.0.2.10"},
		{"shop", "198.51.100.99", "Refused"},
		{"office", "2001:db8:1::99", "Refused"},
		{"office shop", "192.0.2.99", "Success, 198.51.100.8"},
		{"shop", "203.0.113.1", "Success, 192.0.2.10"},
		{"shop", "127.0.0.1", "Success, 192.0.2.10"},
	} {
		k := w.socket(t, strings.Fields(tt.networks)...)
		m := unpack(t, k.answer(w.batch, ask(t, "web", dnsmessage.TypeA), sender(tt.client), nil))
		if got := show(m); got != tt.want {
			t.Errorf("%s at a socket of %s: got %s, want %s", tt.client, tt.networks, got, tt.want)
		}
	}
}

// Addresses begin with the next one each time, and a change does not begin anew.
func TestRotation(t *testing.T) {
	w := newWorld(t, shop)
	k := w.socket(t, "shop")
	firsts := map[string]int{}
	first := func() {
		m := unpack(t, w.exchange(k, ask(t, "pool", dnsmessage.TypeA)))
		firsts[showRecord(m.Answers[0])]++
	}
	for i := range 30 {
		first()
		for _, typ := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA} { // others don't count
			w.exchange(k, ask(t, "db2", typ))
		}
		var err error
		switch i % 3 {
		case 1:
			err = w.set("shop", Change{Set: []Endpoint{{Name: "other", Aliases: []string{"pool"}}}})
		case 2:
			err = w.replace(shop)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff(map[string]int{"192.0.2.20": 10, "192.0.2.21": 10, "192.0.2.22": 10}, firsts); d != "" {
		t.Error(d)
	}
}

// A program takes the first name of an address for the one: the order is always the same.
func TestReverseOrder(t *testing.T) {
	w := newWorld(t, pods)
	k := w.socket(t, "pods")
	for range 4 {
		m := unpack(t, w.exchange(k, ask(t, "7.0.18.198.in-addr.arpa", dnsmessage.TypePTR)))
		var got []string
		for _, r := range m.Answers {
			got = append(got, showRecord(r))
		}
		if want := []string{"web.", "0123456789ab.", "www."}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
}

func TestEDNS(t *testing.T) {
	w := newWorld(t, shop)
	k := w.socket(t, "shop")
	for _, tt := range []struct {
		name    string
		query   string
		dnssec  bool
		version byte
		want    string
		code    dnsmessage.RCode
	}{
		{"answer", "web", false, 0, "Success, 192.0.2.10", dnsmessage.RCodeSuccess},
		{"DO bit", "web", true, 0, "Success, 192.0.2.10", dnsmessage.RCodeSuccess},
		{"no such name", "no.shop", false, 0, "NameError, authority SOA of shop. for 0 s", dnsmessage.RCodeNameError},
		{"unknown version", "web", false, 1, "Success", 16}, // BADVERS
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := unpack(t, w.exchange(k, ask(t, tt.query, dnsmessage.TypeA, withEDNS(4096, tt.dnssec, tt.version))))
			if got := show(m); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			if len(m.Additionals) != 1 {
				t.Fatalf("additional records: %v", m.Additionals)
			}
			h := m.Additionals[0].Header
			if h.Type != dnsmessage.TypeOPT || int(h.Class) != ednsUDPBytes || h.DNSSECAllowed() != tt.dnssec || h.ExtendedRCode(m.RCode) != tt.code {
				t.Errorf("OPT record %+v, code %v", h, h.ExtendedRCode(m.RCode))
			}
		})
	}
}

// A long answer over UDP has the records that fit, and is marked.
func TestTruncation(t *testing.T) {
	many := Network{Name: "shop", NoForward: true, Endpoints: []Endpoint{{Name: "many"}}}
	for i := range 200 {
		many.Endpoints[0].Addrs = append(many.Endpoints[0].Addrs, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}))
	}
	w := newWorld(t, many)
	k := w.socket(t, "shop")
	for _, tt := range []struct {
		name string
		edit []func(*dnsmessage.Message)
		want int // records
		size int // bytes at most
	}{
		{"without EDNS", nil, (512 - 12 - 10) / 16, 512},
		{"with EDNS", []func(*dnsmessage.Message){withEDNS(800, false, 0)}, (800 - 12 - 10 - 11) / 16, 800},
		{"more than we send", []func(*dnsmessage.Message){withEDNS(65535, false, 0)}, (1232 - 12 - 10 - 11) / 16, 1232},
		{"less than the least", []func(*dnsmessage.Message){withEDNS(100, false, 0)}, (512 - 12 - 10 - 11) / 16, 512},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out := w.exchange(k, ask(t, "many", dnsmessage.TypeA, tt.edit...))
			m := unpack(t, out)
			if !m.Truncated || len(m.Answers) != tt.want || len(out) > tt.size {
				t.Errorf("truncated %t, %d records, %d bytes", m.Truncated, len(m.Answers), len(out))
			}
		})
	}
	if got := w.batch.cut; got != 4 {
		t.Errorf("%d truncated answers are counted", got)
	}
}

func TestMalformed(t *testing.T) {
	w := newWorld(t, shop)
	k := w.socket(t, "shop")
	good := ask(t, "web", dnsmessage.TypeA)
	edit := func(at int, b byte) []byte {
		out := slices.Clone(good)
		out[at] = b
		return out
	}
	long := slices.Concat(good[:questionAt], []byte(strings.Repeat("\x3f"+strings.Repeat("a", 63), 4)), []byte{0, 0, 1, 0, 1})
	for _, tt := range []struct {
		name string
		msg  []byte
		want string // "" means no answer
	}{
		{"empty", nil, ""},
		{"short header", good[:11], ""},
		{"an answer", edit(2, 0x81), ""},
		{"no question", edit(5, 0), "FormatError"},
		{"two questions", edit(5, 2), "FormatError"},
		{"header alone", good[:12], "FormatError"},
		{"short name", good[:14], "FormatError"},
		{"short question", good[:len(good)-1], "FormatError"},
		{"compressed name", slices.Concat(good[:12], []byte{0xc0, 12, 0, 1, 0, 1}), "FormatError"},
		{"label of 64 bytes", slices.Concat(good[:12], []byte("\x40"+strings.Repeat("a", 64)), []byte{0, 0, 1, 0, 1}), "FormatError"},
		{"label of a reserved type", edit(12, 0x41), "FormatError"},
		{"name of 257 bytes", long, "FormatError"},
		{"missing record", edit(7, 1), "FormatError"},
		{"status request", edit(2, 0x10), "NotImplemented"},
		{"class CH", edit(len(good)-1, 3), "Refused"},
		{"two OPT records", ask(t, "web", dnsmessage.TypeA, withEDNS(512, false, 0), withEDNS(512, false, 0)), "FormatError"},
		{"trailing bytes", append(slices.Clone(good), 1, 2, 3), "Success, 192.0.2.10"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out := w.exchange(k, tt.msg)
			got := ""
			if len(out) > 0 {
				got = show(unpack(t, out))
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	if got := w.batch.counts[invalid] + w.batch.counts[ignored]; got != 15 {
		t.Errorf("%d invalid messages are counted", got)
	}
}

// Nothing is allocated for an answer.
func TestAllocations(t *testing.T) {
	w := newWorld(t, shop, office)
	k := w.socket(t, "office", "shop")
	out, client := make([]byte, 0, ednsUDPBytes), sender("192.0.2.99")
	for _, q := range [][]byte{
		ask(t, "WEB.shop", dnsmessage.TypeA, withEDNS(1232, true, 0)), ask(t, "pool", dnsmessage.TypeA), ask(t, "db", dnsmessage.TypeAAAA),
		ask(t, "nosuch.shop", dnsmessage.TypeA), ask(t, "_sql._tcp.pool", dnsmessage.TypeSRV), ask(t, "10.2.0.192.in-addr.arpa", dnsmessage.TypePTR),
	} {
		if n := testing.AllocsPerRun(100, func() { k.answer(w.batch, q, client, out) }); n != 0 {
			t.Errorf("%x: %v allocations", q, n)
		}
	}
}

func BenchmarkAnswer(b *testing.B) {
	w := newWorld(b, shop)
	k := w.socket(b, "shop")
	q, out, client := ask(b, "web", dnsmessage.TypeA), make([]byte, 0, ednsUDPBytes), sender("192.0.2.99")
	b.ReportAllocs()
	for b.Loop() {
		k.answer(w.batch, q, client, out)
	}
}
