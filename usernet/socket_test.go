package usernet

import (
	"net/netip"
	"testing"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

func TestLocalControl(t *testing.T) {
	for _, tt := range []struct {
		name, system string
		allowed      []string
		want         string
	}{
		{"the usual system", "cubic", []string{"reno", "cubic"}, ""},
		{"reno is fine", "reno", []string{"reno"}, ""},
		{"BBR, cubic foreverybody", "bbr", []string{"reno", "bbr", "cubic"}, "cubic"},
		{"BBR, cubic for root only", "bbr", []string{"reno", "bbr"}, "reno"},
		{"an unreadable list", "bbr", nil, "reno"},
	} {
		if got := localControl(tt.system, tt.allowed); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestSocketsHaveTheOutboundAddress(t *testing.T) {
	cfg := Config{Outbound4: netip.MustParseAddr("127.0.0.9")}
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM} {
		for to, want := range map[netip.Addr]netip.Addr{rigPeer4: cfg.Outbound4, loopback4: netip.IPv4Unspecified()} {
			fd, err := cfg.socket(unix.AF_INET, to, kind, 0)
			if err != nil {
				t.Fatal(err)
			}
			own, errno := sys.LocalAddress(fd)
			unix.Close(fd)
			if errno != 0 || own.AddrPort().Addr() != want {
				t.Errorf("kind %d to %s: bound to %s, %v; want %s", kind, to, own.AddrPort(), errno, want)
			}
		}
	}
}
