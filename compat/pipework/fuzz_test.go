package pipework

import (
	"strings"
	"testing"
)

// FuzzParse parses unlikely command lines.
func FuzzParse(f *testing.F) {
	for _, line := range []string{"br1\x00web\x00192.0.2.10/24@192.0.2.1", "eth1\x00-i\x00eth2\x00web\x00dhcp\x00mac:02:00:5e:10:00:01\x00@10", "--wait\x00-i\x00eth1",
		"route\x00web\x00add\x00x", "mac:\x00web\x000/0", "--direct-phys\x00mac:xx\x00w\x00udhcpc-f:-x hostname:a", "br0\x00-l\x00\x00web\x00U:x"} {
		f.Add(line)
	}
	devices := []Device{{Name: "br1", Kind: "bridge"}, {Name: "eth1", Up: true}, {Name: "wlan0", Radio: "phy0"}, {Name: "ib0", InfiniBand: true}}
	f.Fuzz(func(t *testing.T, line string) {
		o, err := Parse(strings.Split(line, "\x00"))
		if err != nil || o.Help || o.Version || o.Wait || o.Tool != nil {
			return
		}
		if p, err := o.Plan(devices); err == nil {
			_ = p.Spec.Validate()
		}
	})
}
