package firewall_test

import "testing"

// A connection of the host's to ::1 whose addresses are translated leaves through another
// device, and its replies are accepted there if the device has a local route to ::1, not
// otherwise. What others send to ::1 is dropped before any rule, and with the route too.
func TestAssumeLoopbackIPv6(t *testing.T) {
	t.Parallel()
	w := newBed(t)
	nft(t, w.host, `table ip6 assume {
		chain output { type nat hook output priority -100; ip6 daddr ::1 tcp dport 8080 dnat to [2001:db8:0:1::2]:80; }
		chain postrouting { type nat hook postrouting priority 100; ip6 saddr ::1 oifname web masquerade; }
		chain prerouting { type filter hook prerouting priority -300; iifname web ip6 daddr ::1 counter; }
	}`)
	w.reaches(w.host, "tcp", "[::1]:8080", "")
	run(t, w.host, "", "ip", "-6", "route", "add", "local", "::1/128", "dev", "web", "table", "local")
	w.reaches(w.host, "tcp", "[::1]:8080", "a 2001:db8:0:1::1")
	w.reaches(w.host, "tcp", "[::1]:80", "host ::1")
	got := collect(t, w.host, "[::]:5000")
	for _, to := range []string{"[::1]:5000", "[2001:db8:0:1::1]:5000"} {
		inject(t, w.a, w.host, "web", addrPort("[2001:db8:0:1::2]:5001"), addrPort(to), to)
	}
	if s := next(t, got); s != "[2001:db8:0:1::1]:5000" {
		t.Errorf("the host got a datagram to %s", s)
	}
	if all := counted(t, w.host, "ip6"); len(all) != 1 || all[0] != "0" {
		t.Errorf("rules have seen %v packets to ::1, want none", all)
	}
}
