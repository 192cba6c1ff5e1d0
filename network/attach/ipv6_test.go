package attach_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"cleat/network/attach"
)

// TestSwitchesOnIPv6 has a container with IPv6 switched off: one link speaks it, and
// the others stay as they are.
func TestSwitchesOnIPv6(t *testing.T) {
	need(t, "bridge")
	w := newWorld(t)
	noIPv6(t, w, nil)
	got, err := w.attach(attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24", "2001:db8::10/64")}, nil)
	must(t, err)
	if len(got.Notes) != 1 || !strings.Contains(got.Notes[0], "only eth0 has it") {
		t.Errorf("notes %q", got.Notes)
	}
	all := lookInto(t, w.web)
	if !slices.ContainsFunc(all, func(line string) bool { return strings.Contains(line, "2001:db8::10/64") }) {
		t.Errorf("no address: %q", all)
	}
	_, err = w.attach(attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.11/24")}, nil)
	must(t, err)
	for name, want := range map[string]string{"eth0": "0", "eth1": "1", "lo": "1", "default": "1"} {
		must(t, w.web.Do(func() error {
			text, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + name + "/disable_ipv6")
			if strings.TrimSpace(string(text)) != want {
				t.Errorf("%s: disable_ipv6 is %s", name, text)
			}
			return err
		}))
	}
}
