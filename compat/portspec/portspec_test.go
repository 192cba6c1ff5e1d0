package portspec

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

var linux = Ports{32768, 60999} // the kernel's ip_local_port_range

// describe formats a Spec on one line.
func describe(s Spec) string {
	if s.None {
		return "none"
	}
	var b strings.Builder
	if s.Listen.IsValid() {
		fmt.Fprintf(&b, "on %s ", s.Listen)
	}
	if s.Interface != "" {
		fmt.Fprintf(&b, "at %s ", s.Interface)
	}
	if s.Auto {
		b.WriteString("auto ")
	}
	for _, r := range s.Ranges {
		fmt.Fprintf(&b, "%d-%d>", r.First, r.Last)
		if r.ToAddr.IsValid() {
			fmt.Fprintf(&b, "%s/", r.ToAddr)
		}
		fmt.Fprintf(&b, "%d", r.To)
		if r.Weak {
			b.WriteString("?")
		}
		b.WriteString(" ")
	}
	return strings.TrimSuffix(b.String(), " ")
}

func TestParse(t *testing.T) {
	rows := []struct{ name, spec, want string }{
		{"none", "none", "none"},
		{"one port", "22", "22-22>22"},
		{"to another", "22:23", "22-22>23"},
		{"several", "22,25", "22-22>22 25-25>25"},
		{"out of order", "25,22", "22-22>22 25-25>25"},
		{"a range", "22-80", "22-80>22"},
		{"as engines write one port", "127.0.0.1/8080-8080:80-80", "on 127.0.0.1 8080-8080>80"},
		{"range to range", "22-80:32-90", "22-80>32"},
		{"the last port", "65535", "65535-65535>65535"},
		{"with address", "192.0.2.1/22", "on 192.0.2.1 22-22>22"},
		{"with address and link", "192.0.2.1%eth0/22", "on 192.0.2.1 at eth0 22-22>22"},
		{"with link", "%eth0/22", "at eth0 22-22>22"},
		{"with nothing before the slash", "/22", "22-22>22"},
		{"IPv6", "::1/22", "on ::1 22-22>22"},
		{"brackets", "[2001:db8::1]/22:23", "on 2001:db8::1 22-22>23"},
		{"mapped IPv4", "::ffff:192.0.2.1/22", "on 192.0.2.1 22-22>22"},
		{"to an address", "0.0.0.0/22:192.0.2.5", "on 0.0.0.0 22-22>192.0.2.5/22"},
		{"to an address and port", "0.0.0.0/5000:192.0.2.5/6000", "on 0.0.0.0 5000-5000>192.0.2.5/6000"},
		{"range to an address", "::/22-23:[2001:db8::1]/32-33", "on :: 22-23>2001:db8::1/32"},
		{"without some", "2000-5000,~3000-3010", "2000-2999>2000 3011-5000>3011"},
		{"exclusion first", "~25,192-200,~195", "192-194>192 196-200>196"},
		{"exclusion moves the target along", "20-30:120-130,~25", "20-24>120 26-30>126"},
		{"exclusions that overlap", "20-30,~22-24,~23-26", "20-21>20 27-30>27"},
		{"all excluded", "22,~22", ""},
		{"all", "all", "1-32767>1? 61000-65535>61000?"},
		{"all at an address", "::1/all", "on ::1 1-32767>1? 61000-65535>61000?"},
		{"all to an address", "127.0.0.6/all:192.0.2.6", "on 127.0.0.6 1-32767>192.0.2.6/1? 61000-65535>192.0.2.6/61000?"},
		{"all but", "~20000-20010", "1-19999>1? 20011-32767>20011? 61000-65535>61000?"},
		{"all but the edges", "~1,~65535", "2-32767>2? 61000-65534>61000?"},
		{"a literal port goes before all", "1:2,all,~3-65535", "1-1>2 2-2>2?"},
		{"an ephemeral port by name", "40000", "40000-40000>40000"},
		{"auto", "auto", "auto 1-32767>1? 61000-65535>61000?"},
		{"auto at an address", "::1/auto", "on ::1 auto 1-32767>1? 61000-65535>61000?"},
		{"auto in a range", "8000-8010,auto", "auto 8000-8010>8000"},
		{"auto but", "~22,auto", "auto 1-21>1? 23-32767>23? 61000-65535>61000?"},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			s, err := Parse(r.spec, linux)
			if err != nil {
				t.Fatal(err)
			}
			if got := describe(s); got != r.want {
				t.Errorf("%q is\n%s, want\n%s", r.spec, got, r.want)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	rows := []struct{ name, spec, why string }{
		{"nothing", "", "'' is not a port"},
		{"a word", "http", "'http' is not a port"},
		{"a trailing comma", "22,", "'' is not a port"},
		{"no entry after the address", "127.0.0.1/", "'' is not a port"},
		{"port 0", "0", "port 0 can't be forwarded"},
		{"to port 0", "22:0", "port 0 can't be forwarded"},
		{"too large", "65536", "'65536' is not a port"},
		{"a sign", "+22", "'+22' is not a port"},
		{"backwards", "5-3", "3 comes before 5"},
		{"unequal ranges", "22-23:30", "22-23 and 30 have different numbers of ports"},
		{"none among others", "none,22", "'none' is not a port"},
		{"auto with a target", "auto:3", "'auto' is not a port"},
		{"a name for an address", "localhost/22", "'localhost' is not an address"},
		{"half an address", "127.0.0/22", "'127.0.0' is not an address"},
		{"a link without a name", "192.0.2.1%/22", "'' is not a link name"},
		{"a link with a long name", "%abcdefghijklmnop/22", "'abcdefghijklmnop' is not a link name"},
		{"the same port twice", "22,20-23", "port 22 is given twice"},
		{"all twice", "all,all", "'all' is given twice"},
		{"an unended target", "0.0.0.0/22:192.0.2.6/", "'' is not a port"},
		{"a target without address", "22:/5", "'' is not an address"},
		{"from any to IPv4", "22:192.0.2.6", "listening on any address can't lead to 192.0.2.6; did you mean 0.0.0.0/...?"},
		{"from any to IPv6", "22:::1/5", "listening on any address can't lead to ::1; did you mean [::]/...?"},
		{"from IPv4 to IPv6", "192.0.2.1/22:::1/5", "192.0.2.1 can't lead to ::1"},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			s, err := Parse(r.spec, linux)
			e := new(Error)
			if !errors.As(err, &e) {
				t.Fatalf("%q is %s (%v)", r.spec, describe(s), err)
			}
			if e.Why != r.why || e.Spec != r.spec {
				t.Errorf("%q: %s, want %s", e.Spec, e.Why, r.why)
			}
		})
	}
}

// slow returns where a port is forwarded, by reading the entries for that port alone.
func slow(entries string, port int, ephemeral Ports) (to int, leads bool) {
	only := true
	for e := range strings.SplitSeq(entries, ",") {
		var a, b, c int
		switch {
		case e == "auto":
		case strings.HasPrefix(e, "~"):
			if n, _ := fmt.Sscanf(e, "~%d-%d", &a, &b); n == 1 {
				b = a
			}
			if a <= port && port <= b {
				return 0, false
			}
		default:
			only = false
			if e == "all" {
				if !leads && (port < int(ephemeral.First) || port > int(ephemeral.Last)) {
					to, leads = port, true
				}
				continue
			}
			src, dst, mapped := strings.Cut(e, ":")
			if n, _ := fmt.Sscanf(src, "%d-%d", &a, &b); n == 1 {
				b = a
			}
			c = a
			if mapped {
				fmt.Sscanf(dst, "%d", &c)
			}
			if a <= port && port <= b {
				to, leads = c+port-a, true
			}
		}
	}
	if only && (port < int(ephemeral.First) || port > int(ephemeral.Last)) {
		return port, true
	}
	return to, leads
}

// FuzzParse compares Parse with slow, port by port.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"22", "22-80:32-90,~50", "all,1:2,~3", "auto,~22", "::1/auto", "0.0.0.0/5000:192.0.2.5/6000", "%eth0/22", "[::1]/22", "none", "~1-65535"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text, linux)
		if err != nil || s.None {
			return
		}
		entries := text
		for _, r := range s.Ranges {
			if r.ToAddr.IsValid() || r.First > r.Last || r.First == 0 || r.To == 0 {
				if !r.ToAddr.IsValid() {
					t.Fatalf("%q: impossible range %+v", text, r)
				}
				return // slow ignores addresses
			}
		}
		if s.Listen != (netip.Addr{}) || s.Interface != "" || strings.HasPrefix(text, "/") {
			_, entries, _ = strings.Cut(text, "/")
		}
		leads := map[int]int{}
		for _, r := range s.Ranges {
			for p := int(r.First); p <= int(r.Last); p++ {
				if _, twice := leads[p]; twice {
					t.Fatalf("%q: port %d leads to two places", text, p)
				}
				leads[p] = int(r.To) + p - int(r.First)
			}
		}
		for _, p := range []int{1, 2, 3, 21, 22, 23, 49, 50, 51, 80, 81, 5000, 32767, 32768, 60999, 61000, 65535} {
			want, ok := slow(entries, p, linux)
			if got, has := leads[p]; has != ok || got != want {
				t.Fatalf("%q: port %d leads to %d (%v), want %d (%v)", text, p, got, has, want, ok)
			}
		}
	})
}
