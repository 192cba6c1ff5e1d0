package dns

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

func TestParseResolvConf(t *testing.T) {
	many := ""
	for i := range 20 {
		many += fmt.Sprintf("nameserver 192.0.2.%d\n", i)
	}
	for _, c := range []struct {
		name, in string
		want     string // as show has it
	}{
		{"empty", "", "[] [] 1 5s 2"},
		{"servers", "nameserver 192.0.2.1\nnameserver 2001:db8::1\n", "[192.0.2.1 2001:db8::1] [] 1 5s 2"},
		{"stub resolver", "nameserver 127.0.0.53\noptions edns0 trust-ad\nsearch corp.example\n", "[127.0.0.53] [corp.example] 1 5s 2 edns0"},
		{"scope", "nameserver fe80::1%eth0\n", "[fe80::1%eth0] [] 1 5s 2"},
		{"unspecified", "nameserver 0.0.0.0\nnameserver ::\n", "[127.0.0.1 ::1] [] 1 5s 2"},
		{"mapped", "nameserver ::ffff:192.0.2.1\n", "[192.0.2.1] [] 1 5s 2"},
		{"twice the same", "nameserver 192.0.2.1\nnameserver 192.0.2.1\n", "[192.0.2.1] [] 1 5s 2"},
		{"more than we take", many, "[192.0.2.0 192.0.2.1 192.0.2.2 192.0.2.3 192.0.2.4 192.0.2.5 192.0.2.6 192.0.2.7] [] 1 5s 2"},
		{"comments", "# nameserver 192.0.2.1\n; nameserver 192.0.2.2\nnameserver 192.0.2.3 # mine\n", "[192.0.2.3] [] 1 5s 2"},
		{"tabs, CR, no newline at the end", "\tnameserver\t192.0.2.1\t\r\nnameserver 192.0.2.2", "[192.0.2.1 192.0.2.2] [] 1 5s 2"},
		{"garbage", "nameserver\nnameserver x\nnameserver 192.0.2.300\nfoo bar\n\x00\nnameserver 192.0.2.1", "[192.0.2.1] [] 1 5s 2"},
		{"keyword in another word", "nameservers 192.0.2.1\n", "[] [] 1 5s 2"},
		{"search", "search a.example b.example. # c.example\n", "[] [a.example b.example] 1 5s 2"},
		{"search and domain: the last", "search a.example\ndomain b.example c.example\n", "[] [b.example] 1 5s 2"},
		{"search for nothing", "search .\n", "[] [] 1 5s 2"},
		{"options", "options ndots:2 timeout:1 attempts:3 rotate use-vc single-request\n", "[] [] 2 1s 3 rotate tcp"},
		{"options in two lines", "options ndots:2\noptions timeout:1\n", "[] [] 2 1s 2"},
		{"options too large", "options ndots:99 timeout:2000000000 attempts:99\n", "[] [] 15 30s 5"},
		{"timeout too large", "options timeout:99\n", "[] [] 1 30s 2"},
		{"options that are none", "options ndots:x timeout: attempts:-1 ndots\n", "[] [] 1 5s 2"},
		{"no time", "options timeout:0 attempts:0\n", "[] [] 1 0s 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			conf, err := ParseResolvConf(strings.NewReader(c.in))
			if err != nil {
				t.Fatal(err)
			}
			if got := show(conf); got != c.want {
				t.Errorf("%q\nis read as %s\nwant       %s", c.in, got, c.want)
			}
		})
	}
}

func show(c ResolvConf) string {
	var servers []string
	for _, s := range c.Servers {
		servers = append(servers, s.Addr().String())
	}
	out := fmt.Sprintf("[%s] [%s] %d %v %d", strings.Join(servers, " "), strings.Join(c.Search, " "), c.Ndots, c.Timeout, c.Attempts)
	for name, set := range map[string]bool{" rotate": c.Rotate && !c.TCP, " edns0": c.EDNS0, " rotate tcp": c.Rotate && c.TCP} {
		if set {
			out += name
		}
	}
	return out
}

func TestParseResolvConfReadError(t *testing.T) {
	if _, err := ParseResolvConf(iotest.ErrReader(io.ErrClosedPipe)); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("error is %v", err)
	}
}

func TestGuestResolvConf(t *testing.T) {
	ours := []netip.Addr{netip.MustParseAddr("10.0.2.3"), netip.MustParseAddr("fd00::3")}
	for _, c := range []struct{ name, host, want string }{
		{"plain", "nameserver 192.0.2.1\n", "nameserver 10.0.2.3\nnameserver fd00::3\n"},
		{"all of it", "nameserver 127.0.0.53\nsearch a.example b.example\noptions ndots:5 timeout:1 attempts:1 rotate edns0 trust-ad use-vc\n",
			"search a.example b.example\nnameserver 10.0.2.3\nnameserver fd00::3\noptions ndots:5 edns0\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			conf, err := ParseResolvConf(strings.NewReader(c.host))
			if err != nil {
				t.Fatal(err)
			}
			if got := string(conf.Guest(ours...)); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestResolvConfIsReloaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s fakes
		for _, a := range []string{"192.0.2.1", "192.0.2.2", "127.0.0.1"} {
			s.set(a, says(t))
		}
		conf, gone, reads := "nameserver 192.0.2.1\nsearch home.example\n", false, 0
		f := newForwarder(t, Config{ResolvConf: func() (io.ReadCloser, error) {
			if reads++; gone {
				return nil, os.ErrNotExist
			}
			return io.NopCloser(strings.NewReader(conf)), nil
		}}, &s)
		asked := func(want string) {
			t.Helper()
			before := s.count(want)
			exchangeUDP(t, f, ask(t, 7, "example.com", dnsmessage.TypeMX))
			if s.count(want) != before+1 {
				t.Errorf("%s was not asked", want)
			}
		}
		asked("192.0.2.1")
		for range 100 {
			asked("192.0.2.1")
		}
		if reads != 1 {
			t.Errorf("read %d times at once", reads)
		}
		conf = "nameserver 192.0.2.2\nsearch vpn.example\n" // the VPN is up
		time.Sleep(lookEvery)
		asked("192.0.2.2")
		if got := f.servers.conf.Search; len(got) != 1 || got[0] != "vpn.example" {
			t.Errorf("search list %v", got)
		}
		gone = true // a link that leads nowhere for a moment
		time.Sleep(lookEvery)
		asked("192.0.2.2")
		gone, conf = false, "nameserver 192.0.2.1\n"
		time.Sleep(lookEvery)
		asked("192.0.2.1")
		conf = ""
		time.Sleep(lookEvery)
		asked("127.0.0.1")
	})
}

func TestLinkLocalServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s fakes
		s.set("fe80::1%17", says(t))
		s.set("fe80::1%3", says(t))
		conf := "nameserver fe80::1%wlan0\n"
		f := newForwarder(t, Config{ResolvConf: text(&conf)}, &s)
		sealed := false
		f.servers.index = func(link string) (int, error) {
			if sealed || link != "wlan0" {
				return 0, os.ErrPermission
			}
			return 17, nil
		}
		for _, c := range []struct {
			conf   string
			sealed bool
			asked  string
		}{
			{"nameserver fe80::1%wlan0\n#", false, "fe80::1%17"},
			{"nameserver fe80::1%3\n", true, "fe80::1%3"},
			{"nameserver fe80::1%wlan0\n", true, "fe80::1%17"},
			{"nameserver fe80::1%eth9\n", true, "fe80::1%eth9"}, // package net may know
		} {
			conf, sealed = c.conf, c.sealed
			time.Sleep(lookEvery)
			before := s.count(c.asked)
			exchangeUDP(t, f, ask(t, 7, "example.com", dnsmessage.TypeMX))
			if s.count(c.asked) == before {
				t.Errorf("%q: %s was not asked", c.conf, c.asked)
			}
		}
	})
}

func TestLinkIndex(t *testing.T) {
	if i, err := linkIndex("lo"); err != nil || i != 1 {
		t.Errorf("lo is %d, %v", i, err)
	}
	if _, err := linkIndex("nosuchlink0"); err == nil {
		t.Error("there is a link nosuchlink0")
	}
}

func TestNoResolvConfMeansLocalhost(t *testing.T) {
	var s fakes
	s.set("127.0.0.1", says(t, "example.com A 192.0.2.1"))
	f := newForwarder(t, Config{ResolvConf: func() (io.ReadCloser, error) { return nil, os.ErrNotExist }}, &s)
	if m := unpack(t, exchangeUDP(t, f, ask(t, 7, "example.com", dnsmessage.TypeA))); len(m.Answers) != 1 {
		t.Error(m.GoString())
	}
}

func TestConfigServersReplaceResolvConf(t *testing.T) {
	conf := "nameserver 192.0.2.9\noptions timeout:3 attempts:1\n"
	f := newForwarder(t, Config{Servers: two(), ResolvConf: text(&conf)}, nil)
	if p := f.servers.plan(time.Now()); !reflect.DeepEqual(p.servers, two()) || p.deadline != 3*time.Second {
		t.Errorf("%+v", p)
	}
}

func FuzzParseResolvConf(f *testing.F) {
	f.Add("nameserver 192.0.2.1\nsearch a.example\noptions ndots:2 timeout:1\n")
	f.Add("nameserver fe80::1%eth0\ndomain x\n;c\n#d\n")
	f.Fuzz(func(t *testing.T, s string) {
		c, err := ParseResolvConf(strings.NewReader(s))
		if err != nil {
			t.Skip()
		}
		if len(c.Servers) > maxServers || c.Timeout < 0 || c.Timeout > maxTimeout || c.Attempts < 0 || c.Attempts > maxAttempts || c.Ndots < 0 || c.Ndots > maxNdots {
			t.Fatalf("%+v", c)
		}
		again, err := ParseResolvConf(strings.NewReader(string(c.Guest(netip.MustParseAddr("10.0.2.3")))))
		if err != nil {
			t.Fatal(err)
		}
		if want := max(c.Ndots, 1); len(again.Servers) != 1 || again.Ndots != want || again.EDNS0 != c.EDNS0 || !reflect.DeepEqual(again.Search, c.Search) {
			t.Fatalf("%q is written as %q", s, c.Guest(netip.MustParseAddr("10.0.2.3")))
		}
	})
}
