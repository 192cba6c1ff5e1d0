package link_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"cleat/link"
)

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		name   string
		kind   string
		params map[string]string
		want   link.Spec
	}{
		{"defaults", "veth", map[string]string{"name": "a", "peer": "b"},
			link.VethSpec{Attrs: attrs("a"), Peer: attrs("b")}},
		{"the peer's parameters", "veth", map[string]string{"name": "a", "peer": "b", "peer_mtu": "9000", "peer_mac": "02:00:5e:10:00:01"},
			link.VethSpec{Attrs: attrs("a"), Peer: link.Attrs{Name: "b", MTU: 9000, MAC: link.MAC{2, 0, 0x5e, 0x10, 0, 1}}}},
		{"a choice", "macvlan", map[string]string{"name": "a", "parent": "p", "mode": "passthru", "nopromisc": "on"},
			link.MacvlanSpec{Attrs: attrs("a"), Parent: "p", Mode: link.MacvlanPassthru, NoPromisc: true}},
		{"a list", "macvlan", map[string]string{"name": "a", "parent": "p", "mode": "source", "sources": "02:00:00:00:00:01, 02:00:00:00:00:02"},
			link.MacvlanSpec{Attrs: attrs("a"), Parent: "p", Mode: link.MacvlanSource, Sources: link.ListOf(link.MAC{2, 5: 1}, link.MAC{2, 5: 2})}},
		{"a switch", "vxlan", map[string]string{"name": "a", "vni": "0x10", "learning": "false", "localbypass": "default"},
			link.VXLANSpec{Attrs: attrs("a"), VNI: 16, Learning: link.Off}},
		{"addresses", "vxlan", map[string]string{"name": "a", "vni": "1", "parent": "p", "group": "239.1.1.1", "local": "::ffff:192.0.2.1"},
			link.VXLANSpec{Attrs: attrs("a"), VNI: 1, Parent: "p", Group: mustAddr("239.1.1.1"), Local: mustAddr("192.0.2.1")}},
		{"a duration", "vxlan", map[string]string{"name": "a", "vni": "1", "ageing": "1m"},
			link.VXLANSpec{Attrs: attrs("a"), VNI: 1, Ageing: time.Minute}},
		{"maps", "vlan", map[string]string{"name": "a", "parent": "p", "id": "7", "egress_qos": "1:2,3:4"},
			link.VLANSpec{Attrs: attrs("a"), Parent: "p", ID: 7, EgressQoS: link.ListOf(link.QoSMap{From: 1, To: 2}, link.QoSMap{From: 3, To: 4})}},
		{"peers", "wireguard", map[string]string{"name": "a", "peers": "public_key=" + link.WireGuardPublic{1}.String() + " endpoint=192.0.2.1:1 keepalive=5s; public_key=" +
			link.WireGuardPublic{2}.String() + " allowed_ips=192.0.2.0/24,2001:db8::/32 preshared_key=" + link.WireGuardKey{3}.Text()},
			link.WireGuardSpec{Attrs: attrs("a"), Peers: link.ListOf(
				link.WireGuardPeer{PublicKey: link.WireGuardPublic{1}, Endpoint: netip.MustParseAddrPort("192.0.2.1:1"), Keepalive: 5 * time.Second},
				link.WireGuardPeer{PublicKey: link.WireGuardPublic{2}, PresharedKey: link.WireGuardKey{3},
					AllowedIPs: link.ListOf(netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32"))})}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := link.Parse(tt.kind, tt.params)
			if err != nil || got != tt.want {
				t.Errorf("got %+v, %v\nwant %+v", got, err, tt.want)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	base := map[string]map[string]string{
		"veth": {"name": "a", "peer": "b"}, "macvlan": {"name": "a", "parent": "p"}, "vxlan": {"name": "a", "vni": "1"},
		"vlan": {"name": "a", "parent": "p", "id": "7"}, "wireguard": {"name": "a"}, "ipip": {"name": "a"},
		"openvswitch": {"name": "a"},
	}
	for _, tt := range []struct {
		name, kind, param, text string
		allowed                 string // prefix of ParamError.Allowed
	}{
		{"an unknown choice", "macvlan", "mode", "bridg", "private, vepa, bridge"},
		{"text for a number", "vxlan", "vni", "one", "0…16777215"},
		{"a number too large", "vxlan", "ttl", "256", "0…255"},
		{"a number too small", "vlan", "id", "0", "1…4094"},
		{"a negative number", "vxlan", "ttl", "-1", "0…255"},
		{"not a switch", "vxlan", "learning", "perhaps", "on, off or default"},
		{"not a boolean", "vxlan", "proxy", "perhaps", "true or false"},
		{"not an address", "vxlan", "remote", "192.0.2", "an IP address"},
		{"an address with a zone", "vxlan", "remote", "fe80::1%eth0", "an IP address"},
		{"the wrong family", "ipip", "remote", "2001:db8::1", "an IPv4 address"},
		{"not an Ethernet address", "veth", "mac", "02:00", "a unicast address"},
		{"a group address", "veth", "mac", "01:00:5e:00:00:01", "a unicast address"},
		{"a name too long", "veth", "peer", "0123456789abcdef", "1…15 bytes"},
		{"a duration without unit", "vxlan", "ageing", "6", "0 for the default, or 1s…"},
		{"a negative duration", "vxlan", "ageing", "-6s", "0 for the default, or 1s…"},
		{"a duration between steps", "vxlan", "ageing", "1500ms", "0 for the default, or 1s…"},
		{"an element twice", "macvlan", "sources", "02:00:00:00:00:01,02:00:00:00:00:01", "addresses"},
		{"an invalid element", "vlan", "egress_qos", "1:2,3", "FROM:TO"},
		{"not of the form", "openvswitch", "db", "/run/db.sock", "unix:PATH"},
		{"an element out of range", "vlan", "egress_qos", "1:8", "FROM:TO"},
		{"a peer without key", "wireguard", "peers", "endpoint=192.0.2.1:1", "peers separated by ';'"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			params := map[string]string{tt.param: tt.text}
			for k, v := range base[tt.kind] {
				if k != tt.param {
					params[k] = v
				}
			}
			spec, err := link.Parse(tt.kind, params)
			var p *link.ParamError
			if !errors.As(err, &p) {
				t.Fatalf("got %+v, %v, want a *ParamError", spec, err)
			}
			if p.Kind != tt.kind || p.Param != tt.param || !strings.HasPrefix(p.Allowed, tt.allowed) {
				t.Errorf("got %v\nwant kind %q, parameter %q, allowed %q…", err, tt.kind, tt.param, tt.allowed)
			}
		})
	}
}

func TestParseUnknownParameter(t *testing.T) {
	_, err := link.Parse("macvlan", map[string]string{"name": "a", "parent": "p", "mod": "bridge"})
	var p *link.ParamError
	if !errors.As(err, &p) || len(p.ValidParams) == 0 || p.ValidParams[0] != "mode" || !strings.HasPrefix(err.Error(), `macvlan: no parameter "mod"; there are mode, `) {
		t.Errorf("got %v", err)
	}
}

func TestParseUnknownKind(t *testing.T) {
	for _, parse := range []func() error{
		func() error { _, err := link.Parse("maclan", nil); return err },
		func() error { return link.Probe("maclan") },
	} {
		var p *link.ParamError
		if err := parse(); !errors.As(err, &p) || p.Param != "kind" || !strings.HasPrefix(p.Allowed, "macvlan, ") {
			t.Errorf("got %v, want a *ParamError for kind that suggests macvlan first", err)
		}
	}
}

// TestParamsReversesParse converts the valid specs of the suites, which set every
// parameter, to text and back.
func TestParamsReversesParse(t *testing.T) {
	for _, s := range suites() {
		for _, spec := range s.valid {
			params := link.Params(spec)
			hidden := false
			for name, text := range params {
				if text == "(hidden)" {
					delete(params, name)
					hidden = true
				}
			}
			got, err := link.Parse(s.kind, params)
			if err != nil || got != spec && !hidden {
				t.Errorf("%s: got %+v, %v\nwant %+v", s.kind, got, err, spec)
			}
		}
	}
}

// TestValidate checks the suites' specs with Validate alone, without a kernel, except
// for parameters that only the kernel can check.
func TestValidate(t *testing.T) {
	for _, s := range suites() {
		for _, r := range s.invalid {
			kernelChecks := r.param == "parent" || r.param == "mtu" // whether the parent exists, and its MTU
			err := r.spec.Validate()
			var p *link.ParamError
			switch {
			case err == nil && kernelChecks:
			case !errors.As(err, &p) || p.Param != r.param:
				t.Errorf("%+v: got %v, want a *ParamError for %s", r.spec, err, r.param)
			}
		}
		for _, spec := range s.valid {
			if err := spec.Validate(); err != nil {
				t.Errorf("%+v: %v", spec, err)
			}
		}
	}
}

func TestSecretsStayHidden(t *testing.T) {
	private, shared := link.WireGuardKey{1, 2, 3}, link.WireGuardKey{4, 5, 6}
	spec := link.WireGuardSpec{Attrs: attrs("a"), PrivateKey: private,
		Peers: link.ListOf(link.WireGuardPeer{PublicKey: link.WireGuardPublic{7}, PresharedKey: shared})}
	_, bad := link.Parse("wireguard", map[string]string{"name": "a", "private_key": private.Text() + "x"})
	if bad == nil {
		t.Fatal("parsed an invalid private key")
	}
	seen := formats(spec) + bad.Error()
	for _, text := range link.Params(spec) {
		seen += text
	}
	for _, k := range []link.WireGuardKey{private, shared} {
		if strings.Contains(seen, k.Text()) || strings.Contains(seen, k.Text()[:8]) {
			t.Errorf("a key appears in %s", seen)
		}
	}
}
