package spec

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// The keys of RFC 7748 section 6.1.
const (
	alicePrivate = "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo="
	alicePublic  = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo="
	bobPublic    = "3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08="
)

// keyFile is a file of the fake opener.
type keyFile struct {
	text string
	mode fs.FileMode
}

var keyFiles = map[string]keyFile{
	"office.key":           {alicePrivate + "\n", 0o600},
	"etc/office.key":       {alicePrivate, 0o400},
	"/run/secrets/it's":    {alicePrivate, 0o600},
	"open.key":             {alicePrivate, 0o640},
	"short.key":            {alicePrivate[4:], 0o600},
	"empty.key":            {"", 0o600},
	"long.key":             {strings.Repeat("A", 4096), 0o600},
	"directory.key":        {"", 0o700 | fs.ModeDir},
	"public-by-others.key": {alicePrivate, 0o604},
}

// open is a fake Opener.
func open(path string) (io.ReadCloser, fs.FileMode, error) {
	f, ok := keyFiles[path]
	switch {
	case path == "secret.key":
		return nil, 0, &fs.PathError{Op: "open", Path: path, Err: fs.ErrPermission}
	case !ok:
		return nil, 0, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	return io.NopCloser(strings.NewReader(f.text)), f.mode, nil
}

// load loads text as f.yaml.
func load(t *testing.T, text string) *File {
	t.Helper()
	f, err := Load(strings.NewReader(text), "f.yaml", open)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// full is a file with every key.
const full = `name: office
device: cleat0
address: [10.9.0.1/30, "fd00:9::1/64"]
routes: [10.20.0.0/16, 2001:db8:20::/48]
sources: [0.0.0.0/0]
form: auto
port: 4755
scheduler: weighted
reorder: {tcp: true, udp: false, hold: 50ms}
mtu: 1400
queue: 3ms
datapath: user
key:
  private: office.key
  peer: ` + bobPublic + `
metrics: /run/cleat/office.metrics
paths:
  - name: dsl
    device: eth0
    local: 192.0.2.1
    remote: 198.51.100.2
    port: 4756
    rate: 2.5G
    weight: 3
    mtu: 1500
    state: up
  - device: eth1
    remote: "[2001:db8::1]:4757"
    state: down
    metered: true
`

func TestLoadEverything(t *testing.T) {
	f := load(t, full)
	if len(f.Findings) > 0 {
		t.Fatalf("findings: %v", f.Findings)
	}
	got := *f.Tunnel
	if got.Key == nil || got.Key.File != "office.key" || got.Key.Private.Text() != alicePrivate ||
		got.Key.Private.Public().String() != alicePublic || got.Key.Peer.String() != bobPublic {
		t.Errorf("key %+v", got.Key)
	}
	got.Key = nil
	want := Tunnel{
		Name: "office", Device: "cleat0",
		Addresses: []netip.Prefix{netip.MustParsePrefix("10.9.0.1/30"), netip.MustParsePrefix("fd00:9::1/64")},
		Routes:    []netip.Prefix{netip.MustParsePrefix("10.20.0.0/16"), netip.MustParsePrefix("2001:db8:20::/48")},
		Sources:   []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")},
		Form:      Native, // because there is a key
		Settings: Settings{
			Port: 4755, Scheduler: Weighted,
			Reorder:  Reorder{TCP: true, Hold: 50 * time.Millisecond},
			MTUBytes: 1400, Queue: 3 * time.Millisecond, Datapath: UserDatapath,
		},
		Compat:  CompatForm{Sequence: true},
		Metrics: Metrics{"unix", "/run/cleat/office.metrics"},
		Paths: []Path{
			{Name: "dsl", Device: "eth0", Local: netip.MustParseAddr("192.0.2.1"), LocalPort: 4756, Remote: netip.MustParseAddrPort("198.51.100.2:4755"), RateBitsPerSec: 2_500_000_000, Weight: 3, MTUBytes: 1500},
			{Name: "eth1", Device: "eth1", LocalPort: 4755, Remote: netip.MustParseAddrPort("[2001:db8::1]:4757"), Weight: 1, Metered: true, Down: true},
		},
	}
	if d := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
		cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); d != "" {
		t.Errorf("differs (-want +got):\n%s", d)
	}
}

// small is the smallest possible file; tests append to it.
const small = `name: office
address: [10.9.0.1/30]
paths:
  - {device: eth0, remote: 198.51.100.2}
`

// TestAllTraffic routes all traffic into a tunnel whose paths are bound to devices.
func TestAllTraffic(t *testing.T) {
	for _, routes := range []string{"0.0.0.0/0, '::/0'", "0.0.0.0/1, 128.0.0.0/1"} {
		text := small + "  - {device: eth1, local: '2001:db8::1', remote: '2001:db8:1::2'}\nroutes: [" + routes + "]\n"
		f, err := Load(strings.NewReader(text), "x.yaml", nil)
		if err != nil || f.Tunnel == nil || len(f.Tunnel.Routes) != 2 {
			t.Errorf("%s: %v, %+v", routes, err, f)
		}
	}
}

func TestLoadDefaults(t *testing.T) {
	got := load(t, small).Tunnel
	if got == nil {
		t.Fatal("the smallest file has mistakes")
	}
	if got.Device != "office" || got.Form != Auto || got.Port != 4754 || got.Scheduler != Adaptive || got.Copies != 0 ||
		got.Reorder != (Reorder{true, true, 200 * time.Millisecond}) || got.MTUBytes != 0 || got.Queue != 0 || got.Key != nil ||
		got.Compat != (CompatForm{Sequence: true}) || got.Metrics != (Metrics{}) {
		t.Errorf("got %+v", got)
	}
	want := Path{Name: "eth0", Device: "eth0", LocalPort: 4754, Remote: netip.MustParseAddrPort("198.51.100.2:4754"), Weight: 1}
	if got.Paths[0] != want {
		t.Errorf("path %+v, want %+v", got.Paths[0], want)
	}
}

func TestLoadChoices(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		ok         func(*Tunnel) bool
	}{
		{"form native", small + "form: native\n", func(t *Tunnel) bool { return t.Form == Native }},
		{"form compat", small + "form: compat\ncompat: {key: 12345, sequence: true}\n", func(t *Tunnel) bool { return t.Form == Compat && t.Compat == CompatForm{true, 12345, true} }},
		{"a compat key of 0", small + "compat: {key: 0}\n", func(t *Tunnel) bool { return t.Compat == CompatForm{true, 0, true} }},
		{"highest compat key", small + "compat: {key: 0xffffffff}\n", func(t *Tunnel) bool { return t.Compat.Key == 1<<32-1 }},
		{"duplicate on all paths", small + "scheduler: duplicate\n", func(t *Tunnel) bool { return t.Scheduler == Duplicate && t.Copies == 0 }},
		{"duplicate on all paths, explicit", small + "scheduler: duplicate\nduplicate: all\n", func(t *Tunnel) bool { return t.Copies == 0 }},
		{"duplicate on two paths", small + "scheduler: duplicate\nduplicate: 2\n", func(t *Tunnel) bool { return t.Copies == 2 }},
		{"queue of 0", small + "queue: 0s\n", func(t *Tunnel) bool { return t.Queue == 0 }},
		{"metrics on loopback", small + "metrics: 127.0.0.1:9100\n", func(t *Tunnel) bool { return t.Metrics == Metrics{"tcp", "127.0.0.1:9100"} }},
		{"metrics on IPv6 loopback", small + "metrics: '[::1]:9100'\n", func(t *Tunnel) bool { return t.Metrics == Metrics{"tcp", "[::1]:9100"} }},
		{"metrics on localhost", small + "metrics: localhost:9100\n", func(t *Tunnel) bool { return t.Metrics == Metrics{"tcp", "127.0.0.1:9100"} }},
		{"path without device", strings.Replace(small, "device: eth0", "local: 192.0.2.1", 1), func(t *Tunnel) bool { return t.Paths[0].Name == "path1" && t.Paths[0].Device == "" }},
		{"device that is no valid path name", strings.Replace(small, "eth0", "eth@0", 1), func(t *Tunnel) bool { return t.Paths[0].Name == "path1" && t.Paths[0].Device == "eth@0" }},
		{"IPv6 remote without brackets", strings.Replace(small, "198.51.100.2", "2001:db8::1", 1), func(t *Tunnel) bool { return t.Paths[0].Remote.String() == "[2001:db8::1]:4754" }},
		{"longest name", strings.Replace(small, "office", strings.Repeat("n", 64)+"\ndevice: d", 1), func(t *Tunnel) bool { return len(t.Name) == 64 && t.Device == "d" }},
		{"no routes", small + "routes:\n#  - 10.20.0.0/16\n", func(t *Tunnel) bool { return t.Routes == nil }},
		{"two paths with different ports", small + "  - {name: b, device: eth0, remote: 198.51.100.2, port: 1}\n", func(t *Tunnel) bool { return len(t.Paths) == 2 }},
		{"a /31", strings.Replace(small, "10.9.0.1/30", "10.9.0.0/31", 1), func(t *Tunnel) bool { return t.Addresses[0].Bits() == 31 }},
		{"second address of a /31", strings.Replace(small, "10.9.0.1/30", "10.9.0.1/31", 1), func(t *Tunnel) bool { return t.Addresses[0].Bits() == 31 }},
		{"largest mtu without a warning", strings.Replace(small, "remote: 198.51.100.2", "remote: 198.51.100.2, mtu: 1400", 1) + "mtu: 1364\n", func(t *Tunnel) bool { return t.MTUBytes == 1364 }},
		{"a /127", strings.Replace(small, "10.9.0.1/30", "fd00::/127", 1), func(t *Tunnel) bool { return t.Inner6() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := load(t, tt.text)
			if f.Tunnel == nil || len(f.Findings) > 0 {
				t.Fatalf("findings %v", f.Findings)
			}
			if !tt.ok(f.Tunnel) {
				t.Errorf("got %+v", f.Tunnel)
			}
		})
	}
}

func TestKeyBesideTheFile(t *testing.T) {
	text := small + "key: {private: office.key, peer: " + bobPublic + "}\n"
	for _, tt := range []struct{ file, private, want string }{
		{"etc/office.yaml", "office.key", "etc/office.key"},
		{"<stdin>", "office.key", "office.key"},
		{"etc/office.yaml", "/run/secrets/it's", "/run/secrets/it's"},
	} {
		f, err := Load(strings.NewReader(strings.Replace(text, "office.key", tt.private, 1)), tt.file, open)
		if err != nil || f.Tunnel == nil || f.Tunnel.Key.File != filepath.Clean(tt.want) {
			t.Errorf("%s with %s: %v, %+v", tt.file, tt.private, err, f)
		}
	}
}

func TestPrivateKeysDontPrint(t *testing.T) {
	f := load(t, small+"key: {private: office.key, peer: "+bobPublic+"}\n")
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x"} {
		text := fmt.Sprintf(verb, f.Tunnel.Key) + fmt.Sprintf(verb, *f.Tunnel.Key) + fmt.Sprintf(verb, f.Tunnel.Key.Private)
		if strings.Contains(text, alicePrivate) || strings.Contains(text, "77076d0a") {
			t.Errorf("%s prints the key: %s", verb, text)
		}
	}
}

func TestAFileThatCantBeRead(t *testing.T) {
	broken := errors.New("broken")
	if f, err := Load(iotest.ErrReader(broken), "f.yaml", open); !errors.Is(err, broken) || f != nil {
		t.Errorf("got %v, %v", f, err)
	}
}

func FuzzLoad(f *testing.F) {
	f.Add(full)
	f.Add(small + "form: compat\ncompat: {key: 12345}\nkey: {private: open.key, peer: " + alicePublic + "}\n")
	f.Add(everyMistake)
	f.Add("name: &n [*n]\naddress: *n\npaths: &p [{<<: *p}]\n")
	f.Add("name: \"\\e]0;x\\a\"\nkey: {private: \"\\e[2J\", peer: \"\\u202e\"}\nmetrics: \"/\\x9b\"\n\"\\b\": 1\npaths: [{device: \"\\e\", rate: \"\\e\"}]\n")
	f.Add("a: &a [x, x]\nb: &b [*a, *a]\nroutes: [*b, *b]\naddress: *b\npaths: [*a, *b]\n")
	f.Add("mtu: 99999999999999999999\nport: -1\nqueue: 9999999999h\nreorder: {hold: -1ns}\ncompat: {key: 18446744073709551615}\n")
	f.Add("paths:\n  - x\n  - {remote: 'fe80::1%eth0', local: '::ffff:192.0.2.1', rate: 1e9}\naddress: [::/0, 0.0.0.0/0, 255.255.255.255/32]\nmetrics: ':'\n")
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4096 {
			t.Skip() // deep nesting is slow
		}
		file, err := Load(strings.NewReader(text), "f.yaml", open)
		if err != nil {
			t.Fatal(err)
		}
		file.CheckMachine(Machine{Devices: []Device{{Name: "eth0", MTUBytes: 1500}}})
		failed, line := false, 1
		for _, e := range file.Findings {
			if e.Line < line || e.Column < 1 || e.Message == "" || e.File != "f.yaml" {
				t.Errorf("finding %+v after line %d", e, line)
			}
			if s := e.String(); Plain(s) != s || !utf8.ValidString(s) {
				t.Errorf("%q is not printable", s)
			}
			line, failed = e.Line, failed || e.Severity == Error
		}
		if failed != (file.Tunnel == nil) {
			t.Errorf("tunnel %v with findings %v", file.Tunnel, file.Findings)
		}
		if u := file.Tunnel; u != nil {
			if Plain(u.Metrics.Address) != u.Metrics.Address || u.Key != nil && Plain(u.Key.File) != u.Key.File {
				t.Errorf("%q, %+v are not printable", u.Metrics.Address, u.Key)
			}
			if !ValidName(u.Name) || !validDevice(u.Device) || len(u.Addresses) == 0 || len(u.Paths) == 0 || u.Port == 0 {
				t.Errorf("incomplete: %+v", u)
			}
			for _, p := range u.Paths {
				if !p.Remote.IsValid() || p.Remote.Port() == 0 || p.LocalPort == 0 || p.Device == "" && !p.Local.IsValid() || p.Weight < 1 {
					t.Errorf("incomplete: %+v", p)
				}
			}
			if !Compare(u, u).IsEmpty() {
				t.Errorf("differs from itself: %+v", Compare(u, u))
			}
		}
	})
}
