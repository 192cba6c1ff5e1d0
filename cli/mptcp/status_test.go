package mptcp

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"cleat/link"
)

// With the longest addresses, the status has at most 80 columns and no trailing spaces.
func TestConnectionText(t *testing.T) {
	for _, tt := range []struct {
		name, local, remote string
		lines               int
	}{
		{"IPv4", "192.0.2.1:40000", "192.0.2.2:443", 5},
		{"IPv6", "[2001:db8:1:2:3:4:5:6]:40000", "[2001:db8:1:2:3:4:5:7]:443", 5},
		{"the longest", "[2001:db80:1000:2000:3000:4000:5000:6000]:40000", "[2001:db80:1000:2000:3000:4000:5000:6001]:40443", 6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			local, remote := netip.MustParseAddrPort(tt.local), netip.MustParseAddrPort(tt.remote)
			c := link.MPTCPConnection{Local: local, Remote: remote, State: "ESTABLISHED", ExtraSubflows: 8, ExtraSubflowsLimit: 8, Subflows: []link.MPTCPSubflow{
				{Device: "enp0s31f6", Local: local, Remote: remote, State: "ESTABLISHED", BytesSent: 123456789, BytesReceived: 123456789, RTT: 19412 * time.Microsecond},
			}}
			text := connectionText(c)
			for line := range strings.Lines(text) {
				line = strings.TrimRight(line, "\n")
				if len([]rune(line)) > 80 || strings.HasSuffix(line, " ") {
					t.Errorf("line of %d columns: %q", len([]rune(line)), line)
				}
			}
			if n := strings.Count(text, "\n"); !strings.Contains(text, "19.4ms") || n < tt.lines {
				t.Errorf("%d lines, want %d or more:\n%s", n, tt.lines, text)
			}
		})
	}
}
