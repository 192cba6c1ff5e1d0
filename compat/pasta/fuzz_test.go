package pasta

import (
	"strings"
	"testing"
)

// FuzzParse parses unlikely command lines, and plans what they ask for.
func FuzzParse(f *testing.F) {
	for _, line := range []string{"--config-net\x00--\x00true", "-t\x008080:80,~22\x00-u\x00auto\x00/proc/1/ns/net", "-a\x00192.0.2.2/24\x00-g\x00192.0.2.1\x00-n\x0030\x001234",
		"-4\x00-6", "-m\x000\x00-I\x00eth0\x00--map-host-loopback\x00none\x00--map-guest-addr\x002001:db8::1", "--netns\x00\x00-D\x00none\x00-S\x00x", "-T\x001-65535:2\x00--runas\x000:0", "-h",
		"--ns-mac-addr\x0002:00:5e:00:00:01\x00-M\x002\x00--dhcp-dns\x00--dhcp-search\x00-S\x00a.example\x00-H\x00h\x00--fqdn\x00f.example\x00-a\x00192.0.2.1\x00-g\x00192.0.2.1"} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		o, err := Parse(strings.Split(line, "\x00"))
		if err != nil || o.Help || o.Version {
			return
		}
		_, _ = o.Plan(Host{})
	})
}
