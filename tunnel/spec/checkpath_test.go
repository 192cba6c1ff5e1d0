package spec

import (
	"errors"
	"net/netip"
	"testing"
)

func TestCheckPath(t *testing.T) {
	remote := netip.MustParseAddrPort("198.51.100.9:4800")
	bare := netip.AddrPortFrom(remote.Addr(), 0)
	for _, tt := range []struct {
		name string
		path Path
		want Path
		err  string // "": valid
		hint string
	}{
		{"defaults", Path{Name: "lte", Device: "wwan0", Remote: bare},
			Path{Name: "lte", Device: "wwan0", LocalPort: 4755, Remote: netip.AddrPortFrom(remote.Addr(), 4755), Weight: 1}, "", ""},
		{"everything", Path{"lte", "wwan0", netip.MustParseAddr("192.0.2.77"), 4801, remote, 5e6, 7, 1400, true, true},
			Path{"lte", "wwan0", netip.MustParseAddr("192.0.2.77"), 4801, remote, 5e6, 7, 1400, true, true}, "", ""},
		{"invalid name", Path{Name: "a/b", Device: "wwan0", Remote: bare}, Path{}, `path name "a/b": want 1…32 of a-z A-Z 0-9 _ . - (but not . or ..)`, ""},
		{"no name", Path{Device: "wwan0", Remote: bare}, Path{}, `name is missing: want 1…32 of a-z A-Z 0-9 _ . - (but not . or ..)`, ""},
		{"quotes", Path{Name: "lte", Device: "\"}]\n", Remote: bare}, Path{}, `device "\"}]\n": want 1…15 bytes without /, :, % or spaces`, ""},
		{"no remote, device or local", Path{Name: "lte"}, Path{Name: "lte", LocalPort: 4755, Weight: 1}, "", ""},
		{"neither device nor local", Path{Name: "lte", Remote: bare}, Path{}, `path "lte" has neither device nor local`, "add the device that it starts at, e.g. device: eth0"},
		{"rate too low", Path{Name: "lte", Device: "wwan0", Remote: bare, RateBitsPerSec: 1000}, Path{}, `rate "1000": want 64K…1000T bit/s`, ""},
		{"negative rate", Path{Name: "lte", Device: "wwan0", Remote: bare, RateBitsPerSec: -1}, Path{}, `rate "-1": want a number above 0 in bit/s, with an optional k, M, G or T`, ""},
		{"weight too high", Path{Name: "lte", Device: "wwan0", Remote: bare, Weight: 10001}, Path{}, "weight 10001: want 1…10000", ""},
		{"mtu too small", Path{Name: "lte", Device: "wwan0", Remote: bare, MTUBytes: 500}, Path{}, "mtu 500: want 576…65535 bytes", ""},
		{"different families", Path{Name: "lte", Local: netip.MustParseAddr("2001:db8::7"), Remote: bare}, Path{}, "local 2001:db8::7 is IPv6: want an address of remote's family, IPv4", ""},
		{"tunnel's own device", Path{Name: "lte", Device: "cleat0", Remote: bare}, Path{}, `path "lte" uses the tunnel's own device cleat0`, ""},
		{"remote inside a route", Path{Name: "lte", Device: "wwan0", Remote: netip.MustParseAddrPort("10.20.0.7:4755")}, Path{},
			"remote 10.20.0.7 of path \"lte\" lies within the tunnel's route 10.20.0.0/16: the tunnel's own packets would go into the tunnel", ""},
		{"duplicate path", Path{Name: "lte", Device: "eth0", Local: netip.MustParseAddr("192.0.2.1"), LocalPort: 4756, Remote: netip.MustParseAddrPort("198.51.100.2:4755")}, Path{},
			`path "lte" duplicates path "dsl": both go from 192.0.2.1:4756 to 198.51.100.2:4755`, "they must differ in device, local, remote or a port"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := running(t)
			got, err := before.CheckPath(tt.path)
			if tt.err == "" {
				if err != nil || got != tt.want {
					t.Errorf("got %+v, %v\nwant %+v", got, err, tt.want)
				}
				return
			}
			var wrong *PathError
			if !errors.As(err, &wrong) || err.Error() != tt.err || wrong.Hint() != tt.hint || got != (Path{}) {
				t.Errorf("got %+v, %v\nwant %s", got, err, tt.err)
			}
			if d := names(before.Paths, nil); d != names(running(t).Paths, nil) {
				t.Errorf("the tunnel has changed: %s", d)
			}
		})
	}
}
