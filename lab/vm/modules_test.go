package vm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func testModules(t *testing.T) modules {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"modules.dep": `kernel/net/openvswitch/openvswitch.ko: kernel/net/nsh/nsh.ko kernel/lib/libcrc32c.ko
kernel/net/nsh/nsh.ko:
kernel/lib/libcrc32c.ko:
kernel/crypto/crc32c_generic.ko:
kernel/arch/x86/crypto/crc32c-intel.ko:
kernel/drivers/net/vxlan/vxlan.ko: kernel/net/ipv4/udp_tunnel.ko
kernel/net/ipv4/udp_tunnel.ko:
kernel/net/netfilter/nft_ct.ko:
kernel/net/netfilter/nft_nat.ko:
`,
		"modules.softdep": "# Soft dependencies\nsoftdep libcrc32c pre: crc32c\nsoftdep nsh post: libcrc32c\n",
		"modules.alias":   "alias crc32c crc32c_generic\nalias crc32c crc32c_intel\nalias cpu:type:x86,ven* crc32c_intel\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	m, err := readModules(dir)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestModulesClosure(t *testing.T) {
	tests := []struct {
		name     string
		patterns string
		want     string
	}{
		{"nothing", "", ""},
		{"no dependencies", "udp_tunnel", "udp_tunnel"},
		{"dependencies come first", "vxlan", "udp_tunnel vxlan"},
		{"soft dependencies by alias, before and after", "openvswitch", "crc32c_generic crc32c_intel libcrc32c nsh openvswitch"},
		{"each once", "vxlan udp_tunnel vxlan", "udp_tunnel vxlan"},
		{"dashes", "crc32c-intel", "crc32c_intel"},
		{"pattern", "nft_*", "nft_ct nft_nat"},
		{"unknown or built in", "veth vxlan", "udp_tunnel vxlan"},
	}
	m := testModules(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := m.closure(strings.Fields(tt.patterns))
			if d := cmp.Diff(tt.want, strings.Join(got, " ")); d != "" {
				t.Errorf("closure (-want +got):\n%s", d)
			}
		})
	}
}

func TestModulesMalformed(t *testing.T) {
	dir := t.TempDir()
	if _, err := readModules(dir); err == nil {
		t.Error("a directory without modules.dep is no error")
	}
	if err := os.WriteFile(filepath.Join(dir, "modules.dep"), []byte("no colon\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := readModules(dir); err == nil {
		t.Error("a line without a colon is no error")
	}
}
