package attach_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"cleat/network/attach"
	"cleat/network/networktest"
)

// TestEnablesIPv6OnLink attaches to a container in which IPv6 is disabled: IPv6 is
// enabled on the new link if that gets an IPv6 address, and stays disabled on the others.
func TestEnablesIPv6OnLink(t *testing.T) {
	needKinds(t, "bridge")
	tb := newTestbed(t)
	prepNoIPv6(t, tb, nil)
	got, err := tb.attach(attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24", "2001:db8::10/64")}, nil)
	must(t, err)
	if len(got.Notes) != 1 || !strings.Contains(got.Notes[0], "only eth0 has it") {
		t.Errorf("notes %q", got.Notes)
	}
	all := networktest.Netlink(t, tb.web)
	if !slices.ContainsFunc(all, func(line string) bool { return strings.Contains(line, "2001:db8::10/64") }) {
		t.Errorf("no IPv6 address: %q", all)
	}
	_, err = tb.attach(attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.11/24")}, nil)
	must(t, err)
	for name, want := range map[string]string{"eth0": "0", "eth1": "1", "lo": "1", "default": "1"} {
		must(t, tb.web.Do(func() error {
			text, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + name + "/disable_ipv6")
			if strings.TrimSpace(string(text)) != want {
				t.Errorf("%s: disable_ipv6 is %s", name, text)
			}
			return err
		}))
	}
}
