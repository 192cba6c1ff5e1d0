package spec

import (
	"net/netip"
	"strings"
	"testing"
)

func TestCheckMachine(t *testing.T) {
	addr := netip.MustParseAddr
	here := Machine{
		Devices: []Device{
			{Name: "lo", MTUBytes: 65536, Addresses: []netip.Addr{addr("127.0.0.1"), addr("::1")}},
			{Name: "eth0", MTUBytes: 1500, Addresses: []netip.Addr{addr("192.0.2.1"), addr("fe80::1"), addr("2001:db8::10")}},
			{Name: "eth1", MTUBytes: 1500, Addresses: []netip.Addr{addr("fe80::2")}},
		},
		ForwardsIPv4: true, ForwardsIPv6: true,
	}
	off := here
	off.ForwardsIPv4, off.ForwardsIPv6 = false, false
	for _, tt := range []struct {
		name, text string
		m          Machine
		want       string
	}{
		{"everything exists", path("device: eth0, local: 192.0.2.1, remote: 198.51.100.2, mtu: 1500") + "routes: [10.20.0.0/16]\n", here, ""},
		{"default address", path("device: eth0, remote: '2001:db8::1'"), here, ""},
		{"link-local address", path("device: eth1, remote: 'fe80::9'"), here, ""},
		{"unknown device", path("device: eth7, remote: 198.51.100.2"), here, `f.yaml:4:14: warning: no device eth7 at present: path "eth7" waits for it; did you mean "eth0"?`},
		{"unknown device, no similar one", path("device: wwan0, remote: 198.51.100.2"), here, `f.yaml:4:14: warning: no device wwan0 at present: path "wwan0" waits for it`},
		{"unknown address", path("local: 192.0.2.7, remote: 198.51.100.2"), here, `f.yaml:4:13: warning: address 192.0.2.7 is not on this machine at present: path "path1" waits for it`},
		{"address of another device", path("device: eth1, local: 192.0.2.1, remote: 198.51.100.2"), here, `f.yaml:4:27: warning: address 192.0.2.1 belongs to device eth0, but path "eth1" is bound to eth1`},
		{"device without an address", path("device: eth1, remote: '2001:db8::1'"), here, `f.yaml:4:14: warning: device eth1 has no IPv6 address at present: path "eth1" waits for one`},
		{"mtu above the device's", path("device: eth0, remote: 198.51.100.2, mtu: 1501"), here, `f.yaml:4:47: warning: mtu 1501 exceeds the 1500 of device eth0`},
		{"inner address in use", strings.Replace(path("device: eth0, remote: 198.51.100.2"), "10.9.0.1/30", "192.0.2.1/30", 1), here, `f.yaml:2:11: warning: address 192.0.2.1 is also assigned to device eth0 of this machine`},
		{"running tunnel", strings.Replace(path("device: eth1, remote: 'fe80::9'")+"device: eth0\n", "10.9.0.1/30", "192.0.2.1/30", 1), here, ""},
		{"running tunnel with another device name", strings.Replace(path("device: eth1, remote: 'fe80::9'")+"device: tunnel7\n", "10.9.0.1/30", "192.0.2.1/30", 1), Machine{Devices: here.Devices, OwnDevice: "eth0"}, ""},
		{"forwarding off", small + "routes: [10.20.0.0/16, 'fd00::/64']\n", off, `f.yaml:5:9: warning: forwarding is off: only this machine can reach 10.20.0.0/16; to forward for other hosts: sysctl -w net.ipv4.ip_forward=1` +
			"\n" + `f.yaml:5:9: warning: forwarding is off: only this machine can reach fd00::/64; to forward for other hosts: sysctl -w net.ipv6.conf.all.forwarding=1`},
		{"forwarding off without routes", small, off, ""},
		{"with a mistake, in order", "port: 0\n" + path("device: eth7, remote: 198.51.100.2, rate: fast"), here, `f.yaml:1:7: error: port 0: want 1…65535` + "\n" +
			`f.yaml:5:14: warning: no device eth7 at present: path "eth7" waits for it; did you mean "eth0"?` + "\n" +
			`f.yaml:5:48: error: rate "fast": want a number above 0 in bit/s, with an optional k, M, G or T`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := load(t, tt.text)
			f.CheckMachine(tt.m)
			var got []string
			for _, e := range f.Findings {
				got = append(got, e.String())
			}
			if joined := strings.Join(got, "\n"); joined != tt.want {
				t.Errorf("got\n%s\nwant\n%s", joined, tt.want)
			}
			if (f.Tunnel == nil) != strings.Contains(tt.want, "error") {
				t.Errorf("tunnel %v", f.Tunnel)
			}
		})
	}
}
