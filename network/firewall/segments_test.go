package firewall_test

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"cleat/lab"
	"cleat/network/firewall"

	"golang.org/x/sys/unix"
)

// segmentOf returns the size of the segments of a new TCP connection, in bytes.
func segmentOf(t *testing.T, from *lab.Node, to string) int {
	t.Helper()
	var info *unix.TCPInfo
	must(t, from.NS.Do(func() error {
		c, err := net.Dial("tcp", to)
		if err != nil {
			return err
		}
		defer c.Close()
		raw, err := c.(*net.TCPConn).SyscallConn()
		if err != nil {
			return err
		}
		var got error
		err = raw.Control(func(fd uintptr) { info, got = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
		if err == nil {
			err = got
		}
		return err
	}))
	return int(info.Snd_mss)
}

// meet makes two nodes neighbours without ND messages, which the rules drop: other hosts send none with the addresses of
// their endpoints.
func meet(t *testing.T, a *lab.Node, device string, b *lab.Node, addrA, addrB string) {
	t.Helper()
	for _, one := range []struct {
		from, to     *lab.Node
		device, peer string
		addr         string
	}{{a, b, device, "eth0", addrB}, {b, a, "eth0", device, addrA}} {
		run(t, one.from, fmt.Sprintf("ip neigh replace %s lladdr %s dev %s nud permanent", one.addr, macOf(t, one.to, one.peer), one.device), "sh", "-e")
	}
}

// TestSegments checks that the segments of connections between hosts fit the routes, and that others stay as they are.
func TestSegments(t *testing.T) {
	t.Parallel()
	w := newBed(t)
	s := firewall.State{Networks: []firewall.Network{w.web()}, Remotes: []firewall.Remote{{Device: "nic", Prefixes: []netip.Prefix{prefix("198.51.100.0/26"), prefix("2001:db8:ff::/64")}}}}
	for _, p := range []struct{ own, remote string }{{"192.0.2.0/26", "198.51.100.0/26"}, {"2001:db8:0:1::/64", "2001:db8:ff::/64"}} {
		s.Allow = append(s.Allow, firewall.Pair{From: prefix(p.own), To: prefix(p.remote)}, firewall.Pair{From: prefix(p.remote), To: prefix(p.own)})
	}
	meet(t, w.host, "nic", w.client, "2001:db8:ff::1", "2001:db8:ff::2")
	w.sync(s)
	const mtu, timestamps, head4, head6 = 1300, 12, 40, 60
	run(t, w.host, fmt.Sprintf("ip route add 198.51.100.2/32 dev nic mtu %d; ip -6 route add 2001:db8:ff::2/128 dev nic mtu %[1]d", mtu), "sh", "-e")
	for _, again := range []bool{false, true} {
		for _, c := range []struct {
			name string
			from *lab.Node
			to   string
			want int
		}{
			{"to another host's endpoint", w.a, "198.51.100.2:80", mtu - head4 - timestamps},
			{"from another host's endpoint", w.client, "192.0.2.2:80", mtu - head4 - timestamps},
			{"to another host's endpoint, IPv6", w.a, "[2001:db8:ff::2]:80", mtu - head6 - timestamps},
			{"from another host's endpoint, IPv6", w.client, "[2001:db8:0:1::2]:80", mtu - head6 - timestamps},
			{"to elsewhere", w.a, "198.51.100.66:80", 1500 - head4 - timestamps},
		} {
			if got := segmentOf(t, c.from, c.to); got != c.want {
				t.Errorf("%s: segments of %d bytes, want %d", c.name, got, c.want)
			}
		}
		if again {
			break
		}
		must(t, w.host.NS.Do(func() error { // what nft prints of the rules it reads again
			out, err := exec.Command("sh", "-c", "{ echo flush ruleset; nft list ruleset; } > $0; nft -f $0; nft list ruleset", t.TempDir()+"/rules").CombinedOutput()
			if err != nil || !strings.Contains(string(out), "tcp option maxseg size set rt mtu") {
				t.Errorf("%v\n%s", err, out)
			}
			return nil
		}))
		w.same(s)
	}
}
