package registry

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"testing"
)

var quickEndpoints = map[string]Endpoint{
	"empty": {},
	"usual": {Version: 1, Network: "web", Host: "a", ID: "docker.0123456789abcdef", Container: "docker:api", Names: []string{"api", "0123456789ab"},
		Addresses: []netip.Addr{netip.MustParseAddr("10.64.0.5"), netip.MustParseAddr("2001:db8::5")}, Labels: map[string]string{"app": "api", "tier": "1"}},
	"ports": {Version: 1, Network: "web", Host: "a", ID: "1", Container: "docker:api", Names: []string{"api"}, Addresses: []netip.Addr{netip.MustParseAddr("10.64.0.5")},
		Ports: []Port{{Protocol: "tcp", Port: 80, HostPort: 8080, HostAddr: netip.MustParseAddr("192.0.2.1"), All: true}, {Protocol: "udp", Port: 53, Count: 2}}},
	"escaped": {Version: 2, Network: "web", Host: "a", ID: `a"b\`, Container: "docker:ä<>", Names: []string{"\x7f\n"}, Addresses: []netip.Addr{netip.MustParseAddr("10.64.0.5")}},
}

// TestQuickIsUsual checks that the usual form is read quickly: otherwise it would only be a waste of time.
func TestQuickIsUsual(t *testing.T) {
	for _, name := range []string{"usual", "ports"} {
		var e Endpoint
		if !decodeQuickly([]byte(encode(quickEndpoints[name])), &e) || !reflect.DeepEqual(e, quickEndpoints[name]) {
			t.Errorf("%s: %+v", name, e)
		}
	}
}

// FuzzQuick checks that what is read quickly is what package json reads.
func FuzzQuick(f *testing.F) {
	for _, e := range quickEndpoints {
		f.Add([]byte(encode(e)))
	}
	for _, text := range []string{`{"version":01,`, `{"version":1,"network":"web","host":"a","id":"1","container":"c","names":["a",],"addresses":["::"]}`,
		`{"version":1,"network":"w","host":"a","id":"1","container":"c","names":["a"],"addresses":["fe80::1%x"],"labels":{"a":"b"},"ports":null}`,
		`{"version":1,"network":"w","host":"a","id":"1","container":"c","names":["a"],"addresses":["::1"],"ports":[] }`, `{"version":1}x`,
		`{"version":1,"network":"w","host":"a","id":"1","container":"c","names":["a"],"addresses":["::1"],"ports":[],"later":1}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var quick, usual Endpoint
		if !decodeQuickly(text, &quick) {
			return
		}
		if err := json.Unmarshal(text, &usual); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if !reflect.DeepEqual(quick, usual) {
			t.Errorf("%q: %+v, want %+v", text, quick, usual)
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	text := []byte(encode(quickEndpoints["usual"]))
	b.Run("quickly", func(b *testing.B) {
		for b.Loop() {
			var e Endpoint
			decodeQuickly(text, &e)
		}
	})
	b.Run("usually", func(b *testing.B) {
		for b.Loop() {
			var e Endpoint
			_ = json.Unmarshal(text, &e)
		}
	})
}
