package why

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"cleat/link"
	"cleat/packet"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func TestParseDestination(t *testing.T) {
	for text, want := range map[string]Destination{
		"db":               {Name: "db"},
		"db:5432":          {Name: "db", Port: 5432, Protocol: packet.TCP},
		"db:53/udp":        {Name: "db", Port: 53, Protocol: packet.UDP},
		"web/db:53/UDP":    {Name: "web/db", Port: 53, Protocol: packet.UDP},
		"docker:db":        {Name: "docker:db"},
		"docker:db:80":     {Name: "docker:db", Port: 80, Protocol: packet.TCP},
		"pid:4242":         {Name: "pid:4242"},
		"pid:4242:80":      {Name: "pid:4242", Port: 80, Protocol: packet.TCP},
		"10.20.0.2:80/tcp": {Name: "10.20.0.2", Port: 80, Protocol: packet.TCP},
		"fd00::2":          {Name: "fd00::2"},
		"[fd00::2]":        {Name: "fd00::2"},
		"[fd00::2]:80":     {Name: "fd00::2", Port: 80, Protocol: packet.TCP},
		"host:8080":        {Name: "host", Port: 8080, Protocol: packet.TCP},
		"/proc/1/ns/net":   {Name: "/proc/1/ns/net"},
	} {
		got, err := ParseDestination(text)
		if err != nil || got != want {
			t.Errorf("%q is %+v, %v, want %+v", text, got, err, want)
		}
		if again, err := ParseDestination(got.String()); err != nil || again != want {
			t.Errorf("%q becomes %q, which is %+v, %v", text, got, again, err)
		}
	}
	for _, text := range []string{"", ":80", "db:", "db:0", "db:65536", "db:80/sctp", "[fd00::2]:", "[db]:80", "[fd00::2", "[fd00::2]80", "db:8x"} {
		if got, err := ParseDestination(text); err == nil {
			t.Errorf("%q is %+v, want an error", text, got)
		}
	}
}

func TestParseResolver(t *testing.T) {
	for name, tt := range map[string]struct {
		text, name string
		servers    string
		candidates string
	}{
		"plain":          {"nameserver 192.0.2.1\n", "db", "192.0.2.1", "db."},
		"search":         {"search a.example b.example.\nnameserver 192.0.2.1", "db", "192.0.2.1", "db.a.example. db.b.example. db."},
		"dots":           {"search a.example\nnameserver 192.0.2.1", "db.web", "192.0.2.1", "db.web. db.web.a.example."},
		"ndots":          {"search a.example\noptions timeout:1 ndots:2\nnameserver 192.0.2.1", "db.web", "192.0.2.1", "db.web.a.example. db.web."},
		"absolute":       {"search a.example\nnameserver 192.0.2.1", "db.", "192.0.2.1", "db."},
		"the last list":  {"search a.example\ndomain b.example\nnameserver 192.0.2.1", "db", "192.0.2.1", "db.b.example. db."},
		"three servers":  {"nameserver 192.0.2.1\n nameserver 192.0.2.2\nnameserver x\nnameserver 2001:db8::1\nnameserver 192.0.2.4", "db", "192.0.2.1 192.0.2.2 2001:db8::1", "db."},
		"none":           {"# nameserver 192.0.2.1\n", "db", "127.0.0.1", "db."},
		"seven domains":  {"search 1 2 3 4 5 6 7\n", "db", "127.0.0.1", "db.1. db.2. db.3. db.4. db.5. db.6. db."},
		"a link's scope": {"nameserver fe80::1%eth0", "db", "fe80::1%eth0", "db."},
	} {
		r := parseResolver(tt.text)
		var servers []string
		for _, s := range r.servers {
			servers = append(servers, s.String())
		}
		if got := strings.Join(servers, " "); got != tt.servers {
			t.Errorf("%s: servers %s, want %s", name, got, tt.servers)
		}
		if got := strings.Join(r.candidates(tt.name), " "); got != tt.candidates {
			t.Errorf("%s: candidates %s, want %s", name, got, tt.candidates)
		}
	}
}

func TestHostsEntries(t *testing.T) {
	const text = "127.0.0.1 localhost\n10.20.0.2\tdb api # not web\n#10.20.0.9 db\nfd00::2 DB\nx db\n"
	for name, want := range map[string][]netip.Addr{
		"db": {addr("10.20.0.2"), addr("fd00::2")}, "api": {addr("10.20.0.2")}, "web": nil, "not": nil,
	} {
		if got := hostsEntries(text, name); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// A table as Linux on a little-endian machine prints it.
func TestParseSockets(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1538 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0000000000000000 100 0 0 10 0
   1: 0200140A:0050 0300140A:C350 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0000000000000000 20 4 30 10 -1
   2: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4713 1 0 100 0 0 10 0
   3: 000000FD000000000000000002000000:0035 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000 0 0 4714 2 0 0
   4: 0000000000000000FFFF00000200140A:0051 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4715 1 0 100 0 0 10 0
   5: XX:1 short
`
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the table is that of a little-endian machine")
	}
	want := []listener{
		{netip.MustParseAddrPort("127.0.0.1:5432"), "4711"},
		{netip.MustParseAddrPort("[::]:80"), "4713"},
		{netip.MustParseAddrPort("[fd00::2]:53"), "4714"},
		{netip.MustParseAddrPort("10.20.0.2:81"), "4715"},
	}
	if diff := cmp.Diff(want, parseSockets(table), cmp.AllowUnexported(listener{}), cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// Which sockets get what is sent to an address.
func TestTakes(t *testing.T) {
	for _, tt := range []struct {
		at, to    string
		isRefused bool
		want      bool
	}{
		{"10.20.0.2:80", "10.20.0.2", false, true},
		{"10.20.0.2:80", "10.20.0.3", false, false},
		{"0.0.0.0:80", "10.20.0.2", false, true},
		{"0.0.0.0:80", "fd00::2", false, false},
		{"[::]:80", "fd00::2", false, true},
		{"[::]:80", "10.20.0.2", false, true},
		{"[::]:80", "10.20.0.2", true, false}, // IPV6_V6ONLY
		{"127.0.0.1:80", "10.20.0.2", false, false},
	} {
		if got := (listener{at: netip.MustParseAddrPort(tt.at)}).takes(addr(tt.to), tt.isRefused); got != tt.want {
			t.Errorf("a socket at %s takes %s (refused %v): %v", tt.at, tt.to, tt.isRefused, got)
		}
	}
}

func TestConcernsPort(t *testing.T) {
	v := &investigation{q: Question{To: Destination{Port: 80, Protocol: packet.TCP}}}
	for text, want := range map[string]bool{
		"l4proto tcp dport 80 drop":      true,
		"l4proto tcp dport 81 drop":      false,
		"l4proto udp dport 80 drop":      false,
		"tcp dport 70-90 drop":           true,
		"tcp dport 81-90 drop":           false,
		"dport != 80 drop":               false,
		"dport != 81 drop":               true,
		"ip protocol icmp drop":          false,
		"ip saddr 10.20.0.2 drop":        true,
		"ct state … accept":              true,
		"counter packets 81 dport 80 ok": true,
	} {
		if got := v.concernsPort(text); got != want {
			t.Errorf("%q concerns TCP port 80: %v, want %v", text, got, want)
		}
	}
}

// The packets are those of RFC 826.
func TestARP(t *testing.T) {
	here, there := link.MAC{2, 0, 0x5e, 0x10, 0, 1}, link.MAC{2, 0, 0x5e, 0x10, 0, 2}
	const request = "0001080006040001" + "02005e100001c0000201" + "000000000000c0000202"
	if got := hex.EncodeToString(arpRequest(here, addr("192.0.2.1"), addr("192.0.2.2"))); got != request {
		t.Errorf("request %s, want %s", got, request)
	}
	reply, err := hex.DecodeString("0001080006040002" + "02005e100002c0000202" + "02005e100001c0000201" + "0000")
	if err != nil {
		t.Fatal(err)
	}
	if mac, ok := arpAnswer(reply, addr("192.0.2.2")); !ok || mac != there {
		t.Errorf("the reply comes from %s, %v", mac, ok)
	}
	if _, ok := arpAnswer(reply, addr("192.0.2.3")); ok {
		t.Error("a reply about another address counts")
	}
	if _, ok := arpAnswer(arpRequest(here, addr("192.0.2.2"), addr("192.0.2.2")), addr("192.0.2.2")); ok {
		t.Error("a request counts")
	}
}

// Files and packets of a container may have any content.
func FuzzHostile(f *testing.F) {
	f.Add([]byte("nameserver 192.0.2.1\nsearch a b\noptions ndots:99999999999999999999\n"), "db")
	f.Add([]byte("127.0.0.1 localhost # x"), "localhost")
	f.Add([]byte("   0: 0100007F:1538 00000000:0000 0A 0 0 0 0 0 4711"), "")
	f.Fuzz(func(t *testing.T, text []byte, name string) {
		r := parseResolver(string(text))
		if n := len(r.candidates(name)); n > 7 || len(r.servers) > 3 || len(r.servers) == 0 {
			t.Errorf("%d candidates, %d servers", n, len(r.servers))
		}
		hostsEntries(string(text), name)
		parseSockets(string(text))
		arpAnswer(text, addr("192.0.2.1"))
		_, _, _ = parsePort(text)
		if d, err := ParseDestination(name); err == nil {
			if again, err := ParseDestination(d.String()); err != nil || again != d {
				t.Errorf("%q is %+v, which is printed as %q, which is %+v, %v", name, d, d, again, err)
			}
		}
	})
}
