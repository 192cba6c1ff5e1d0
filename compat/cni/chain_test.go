package cni_test

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/internal/program"
	"cleat/network/named"
)

// reference is where Debian's package containernetworking-plugins has the reference plug-ins.
const reference = "/usr/lib/cni"

// callReference calls a reference plug-in about a container, and returns what it printed.
func (tb *testbed) callReference(verb string, c *container, conf conf) (out []byte) {
	t := tb.t
	t.Helper()
	stdin, err := json.Marshal(conf)
	must(t, err)
	must(t, tb.host.Do(func() error {
		cmd := exec.Command(filepath.Join(reference, conf["type"].(string)))
		cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + c.id, "CNI_NETNS=" + c.path, "CNI_IFNAME=" + c.ifname, "CNI_PATH=" + reference, "PATH=" + os.Getenv("PATH") + ":/usr/sbin"}
		cmd.Stdin = bytes.NewReader(stdin)
		out, err = cmd.Output()
		return nil
	}))
	if err != nil {
		t.Fatalf("%s of %s: %v: %s", verb, conf["type"], err, out)
	}
	return out
}

// chain does with a list of plug-ins what runtimes do: it calls them one after another, the last one first for
// DEL, and passes the result on.
func (tb *testbed) chain(verb string, c *container, list ...conf) {
	tb.t.Helper()
	for i := range list {
		if verb == "DEL" {
			i = len(list) - 1 - i
		}
		plugin := list[i].with(conf{"cniVersion": "1.0.0", "name": "web"})
		if c.prev != nil {
			plugin["prevResult"] = c.prev
		}
		var out []byte
		if plugin["type"] == "cleat-cni" {
			out = tb.succeed(verb, c, plugin)
		} else {
			out = tb.callReference(verb, c, plugin)
		}
		if verb == "ADD" {
			c.prev = out
		}
	}
}

// TestReferencePlugins chains reference plug-ins to this one: each accepts its result, and CHECK and DEL of the
// list work.
func TestReferencePlugins(t *testing.T) {
	ports := conf{"portMappings": []conf{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}}
	for _, tt := range []struct {
		name     string
		plugin   conf
		iptables bool
		works    func(t *testing.T, tb *testbed, c, other *container)
	}{
		{"tuning", conf{"mtu": 1300, "promisc": true, "sysctl": conf{"net.core.somaxconn": "500"}, "runtimeConfig": conf{"mac": "02:00:00:00:00:09"}}, false,
			func(t *testing.T, _ *testbed, c, _ *container) {
				if a := attributes(t, c.ns, "eth0"); a.MTU != 1300 || a.Promisc == 0 || a.HardwareAddr.String() != "02:00:00:00:00:09" {
					t.Errorf("eth0 has MTU %d, promisc %d, %s", a.MTU, a.Promisc, a.HardwareAddr)
				}
			}},
		{"bandwidth", conf{"ingressRate": 100e6, "ingressBurst": 1e6, "egressRate": 100e6, "egressBurst": 1e6}, false, neighbor},
		{"sbr", conf{}, false, neighbor},
		{"portmap", conf{"runtimeConfig": ports}, true, func(t *testing.T, tb *testbed, c, _ *container) {
			serve(t, c.ns, 80)
			if got := reach(t, tb.outside, "198.51.100.1:8080", c.ns); got != c.ns.String() {
				t.Errorf("from outside: %q", got)
			}
		}},
		{"firewall", conf{"backend": "iptables"}, true, neighbor},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tb := newTestbed(t)
			if _, err := os.Stat(filepath.Join(reference, tt.name)); err != nil {
				t.Skipf("%v (package containernetworking-plugins)", err)
			}
			if _, err := program.Find("iptables"); err != nil && tt.iptables {
				t.Skip(err)
			}
			tb.create(named.NetworkSpec{Name: "web", Subnets: subnet("192.0.2.0/24")})
			c, other := tb.container("c"), tb.container("other")
			list := []conf{{"type": "cleat-cni"}, tt.plugin.with(conf{"type": tt.name})}
			before := tb.snapshot(c)
			tb.chain("ADD", c, list...)
			if tt.name == "portmap" { // that of 1.1.1 wants rules for IPv6 of a container without IPv6
				tb.chain("CHECK", c, list[0])
			} else {
				tb.chain("CHECK", c, list...)
			}
			tb.add(other, web)
			tt.works(t, tb, c, other)
			tb.succeed("DEL", other, web)
			tb.chain("DEL", c, list...)
			left := slices.DeleteFunc(tb.snapshot(c), func(line string) bool { return slices.Contains(before, line) })
			if len(left) > 0 && !tt.iptables { // chains of iptables stay
				t.Errorf("DEL leaves:\n%s", strings.Join(left, "\n"))
			}
		})
	}
}

// neighbor reaches another container from the address of the first, as sbr leaves routes only for that.
func neighbor(t *testing.T, _ *testbed, c, other *container) {
	serve(t, other.ns, 80)
	must(t, c.ns.Do(func() error {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 2)}, Timeout: 5 * time.Second}
		conn, err := d.Dial("tcp", "192.0.2.3:80")
		if err == nil {
			conn.Close()
		}
		return err
	}))
}
