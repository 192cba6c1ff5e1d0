package run

import (
	"net/netip"
	"strings"
	"testing"

	"cleat/cli/exit"
	"cleat/sandbox"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestPublish(t *testing.T) {
	tcp := func(listen string, port uint16, to uint16) sandbox.Forward {
		var a netip.Addr
		if listen != "" {
			a = netip.MustParseAddr(listen)
		}
		return sandbox.Forward{Protocol: sandbox.TCP, Listen: netip.AddrPortFrom(a, port), To: netip.AddrPortFrom(netip.Addr{}, to)}
	}
	udp := func(f sandbox.Forward) sandbox.Forward { f.Protocol = sandbox.UDP; return f }
	on := func(link string, f sandbox.Forward) sandbox.Forward { f.Interface = link; return f }
	for _, tt := range []struct {
		name string
		args string // separated by spaces
		want Published
	}{
		{"one number is both", "8080", Published{Forwards: []sandbox.Forward{tcp("", 8080, 8080)}}},
		{"host and guest", "8080:80", Published{Forwards: []sandbox.Forward{tcp("", 8080, 80)}}},
		{"udp", "5353:53/udp", Published{Forwards: []sandbox.Forward{udp(tcp("", 5353, 53))}}},
		{"both protocols", "53/tcp 53/udp", Published{Forwards: []sandbox.Forward{tcp("", 53, 53), udp(tcp("", 53, 53))}}},
		{"an address", "127.0.0.1:8080:80", Published{Forwards: []sandbox.Forward{tcp("127.0.0.1", 8080, 80)}}},
		{"an address, one number", "127.0.0.1:8080", Published{Forwards: []sandbox.Forward{tcp("127.0.0.1", 8080, 8080)}}},
		{"an IPv6 address", "[::1]:8080:80", Published{Forwards: []sandbox.Forward{tcp("::1", 8080, 80)}}},
		{"an IPv6 address, one number", "[2001:db8::1]:8080/udp", Published{Forwards: []sandbox.Forward{udp(tcp("2001:db8::1", 8080, 8080))}}},
		{"any free port", ":80 0:81 127.0.0.1::82 [::1]:0:83", Published{Forwards: []sandbox.Forward{
			tcp("", 0, 80), tcp("", 0, 81), tcp("127.0.0.1", 0, 82), tcp("::1", 0, 83)}}},
		{"a range", "8000-8001:9000-9001", Published{Forwards: []sandbox.Forward{tcp("", 8000, 9000), tcp("", 8001, 9001)}}},
		{"one range is both", "8000-8001", Published{Forwards: []sandbox.Forward{tcp("", 8000, 8000), tcp("", 8001, 8001)}}},
		{"any free ports", ":9000-9001", Published{Forwards: []sandbox.Forward{tcp("", 0, 9000), tcp("", 0, 9001)}}},
		{"the last port", "65535", Published{Forwards: []sandbox.Forward{tcp("", 65535, 65535)}}},
		{"a link", "%eth0:8080:80 192.0.2.1%eth1:81 [fe80::1%eth2]:82:83", Published{Forwards: []sandbox.Forward{
			on("eth0", tcp("", 8080, 80)), on("eth1", tcp("192.0.2.1", 81, 81)), on("eth2", tcp("fe80::1", 82, 83))}}},
		{"auto", "auto", Published{Auto: []sandbox.AutoForward{{TCP: true, UDP: true}}}},
		{"auto of one protocol", "auto/udp", Published{Auto: []sandbox.AutoForward{{UDP: true}}}},
		{"auto with an address and exclusions", "127.0.0.1:auto,~22,~8000-8010/tcp", Published{Auto: []sandbox.AutoForward{{
			TCP: true, Listen: netip.MustParseAddr("127.0.0.1"), Except: []sandbox.PortRange{{First: 22, Last: 22}, {First: 8000, Last: 8010}}}}}},
		{"auto of each protocol", "auto,~22/tcp auto/udp", Published{Auto: []sandbox.AutoForward{
			{TCP: true, Except: []sandbox.PortRange{{First: 22, Last: 22}}}, {UDP: true}}}},
		{"auto beside a port", "8080:80 [::1]:auto", Published{
			Forwards: []sandbox.Forward{tcp("", 8080, 80)},
			Auto:     []sandbox.AutoForward{{TCP: true, UDP: true, Listen: netip.MustParseAddr("::1")}}}},
		{"the same port at two addresses", "127.0.0.1:80 127.0.0.2:80", Published{Forwards: []sandbox.Forward{tcp("127.0.0.1", 80, 80), tcp("127.0.0.2", 80, 80)}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got Published
			for word := range strings.FieldsSeq(tt.args) {
				if err := got.Add(word); err != nil {
					t.Fatal(err)
				}
			}
			equal := cmp.Options{cmp.AllowUnexported(Published{}), cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})}
			if d := cmp.Diff(tt.want, got, equal); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
}

func TestPublishRefuses(t *testing.T) {
	for _, tt := range []struct{ name, args, want string }{
		{"nothing", "", `port ""`},
		{"no number", "http", `port "http"`},
		{"guest missing", "80:", `port ""`},
		{"guest zero", "80:0", `port "0"`},
		{"too large", "65536", `port "65536"`},
		{"backwards", "90-80", `port "90-80"`},
		{"ranges that differ", "8000-8010:9000-9005", "11 ports of the host for 6 of the guest"},
		{"a range to one port", "8000-8010:80", "11 ports of the host for 1 of the guest"},
		{"a protocol", "80/sctp", `protocol "sctp": want tcp or udp`},
		{"a protocol, empty", "80/", `protocol ""`},
		{"a host name", "localhost:80:80", `address "localhost"`},
		{"IPv6 without brackets", "::1:80:80", "in brackets"},
		{"a bracket missing", "[::1:80:80", "brackets"},
		{"no link", "192.0.2.1%:80", "name of a link"},
		{"auto with a port", "auto,22", `"22" after auto`},
		{"auto with no exclusion", "auto,~", `port ""`},
		{"auto twice", "auto/tcp auto,~22", "auto is given twice"},
		{"twice", "8080:80 8080:81", "port 8080 is published twice, also to port 80"},
		{"twice, once at all addresses", "127.0.0.1:8080:80 8080:81", "published twice"},
		{"within a range", "8080 8000-8100", "published twice"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var p Published
			var err error
			for _, word := range strings.Split(tt.args, " ") {
				if err = p.Add(word); err != nil {
					break
				}
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || !exit.IsUsage(err) {
				t.Errorf("error %v, want a usage error with %q", err, tt.want)
			}
		})
	}
}

// Parsed ports are a range within bounds, with as many ports on either side.
func FuzzPublish(f *testing.F) {
	for _, seed := range []string{"8080:80", "[::1%eth0]:1-2:3-4/udp", "%lo:auto,~22", "127.0.0.1::80", ":-:", "[]:1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var p Published
		if err := p.Add(text); err != nil {
			if !exit.IsUsage(err) {
				t.Errorf("%q: %v is no usage error", text, err)
			}
			return
		}
		if len(p.Forwards) == 0 && len(p.Auto) == 0 {
			t.Errorf("%q is read as nothing", text)
		}
		for _, w := range p.Forwards {
			if w.To.Port() == 0 || w.Protocol != sandbox.TCP && w.Protocol != sandbox.UDP {
				t.Errorf("%q leads to %v", text, w)
			}
		}
	})
}
