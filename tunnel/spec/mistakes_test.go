package spec

import (
	"fmt"
	"strings"
	"testing"
)

// everyMistake has a mistake in each line or so.
const everyMistake = `name: of fice
devcie: cleat0
address: [10.9.0.1, 10.9.0.1/30, 10.9.0.1/24]
routes: [10.20.0.1/16]
form: natve
port: 70000
scheduler: adaptve
reorder: {hold: 5s}
mtu: many
queue: 3
key: {private: missing.key, peer: x}
metrics: run/office
paths:
  - {remote: 198.51.100.2, rate: 1k, state: on}
  - {device: eth0, local: 192.0.2.1, remote: "2001:db8::1", colour: red}
`

func TestAllMistakesAtOnceAndInOrder(t *testing.T) {
	want := strings.TrimSpace(`
f.yaml:1:7: error: name "of fice": want 1…64 of a-z A-Z 0-9 _ . - (not . or .. alone)
f.yaml:2:1: error: unknown key "devcie"; did you mean "device"?
f.yaml:3:11: error: address "10.9.0.1": want an address with a prefix, e.g. 10.9.0.1/32
f.yaml:3:34: error: address 10.9.0.1 is given twice
f.yaml:4:10: error: route 10.20.0.1/16 has bits behind its prefix: want 10.20.0.0/16
f.yaml:5:7: error: unknown form "natve"; did you mean "native"?
f.yaml:6:7: error: port 70000: want 1…65535
f.yaml:7:12: error: unknown scheduler "adaptve"; did you mean "adaptive"?
f.yaml:8:17: error: hold 5s: want 10ms…2s
f.yaml:9:6: error: mtu: want a whole number
f.yaml:10:8: error: duration "3": want a number and a unit, e.g. 500ms, 2s, 1m
f.yaml:11:16: error: read key: open missing.key: file does not exist; make one: cleat tunnel key missing.key
f.yaml:11:35: error: peer: parse public key: 1 characters, want the 44 of 32 bytes in base64: not a usable key
f.yaml:12:10: error: metrics "run/office": want an absolute path, or an address of loopback and a port, e.g. 127.0.0.1:9100
f.yaml:14:5: error: path "path1" has neither device nor local; say where it begins, e.g. device: eth0
f.yaml:14:34: error: rate "1k": want 64K…1000T bit/s
f.yaml:14:45: error: unknown state "on"; known: down, up
f.yaml:15:27: error: local 192.0.2.1 is of IPv4: want an address of remote's family, IPv6
f.yaml:15:61: error: unknown key "colour"; known: device, local, mtu, name, port, rate, remote, state, weight
`)
	f := load(t, everyMistake)
	var got []string
	for _, e := range f.Findings {
		got = append(got, e.String())
	}
	if joined := strings.Join(got, "\n"); joined != want {
		t.Errorf("got\n%s\nwant\n%s", joined, want)
	}
	if f.Tunnel != nil {
		t.Error("there is a tunnel all the same")
	}
}

// with is the small file with one text in another's place.
func with(old, new string) string {
	if !strings.Contains(small, old) {
		panic(old)
	}
	return strings.Replace(small, old, new, 1)
}

// path is the small file with another path's keys.
func path(keys string) string { return with("{device: eth0, remote: 198.51.100.2}", "{"+keys+"}") }

// key is the small file with a key.
func key(private, peer string) string {
	return small + "key:\n  private: " + private + "\n  peer: " + peer + "\n"
}

func TestMistakes(t *testing.T) {
	const chmod = "; chmod go= "
	for _, tt := range []struct{ name, text, want string }{
		{"nothing", "", `1:1: error: want one YAML document with the keys name, device, address, routes, sources, form, port, scheduler, duplicate, reorder, mtu, queue, key, compat, metrics, paths`},
		{"no YAML", "name: [", `1:7: error: sequence end token ']' not found`},
		{"no mapping", "- x", `1:1: error: want keys with values`},
		{"too large", "#" + strings.Repeat(" ", maxFile), `1:1: error: the file is too large: want at most 64 KiB`},
		{"empty mapping", "{}", `1:1: error: name is missing: want 1…64 of a-z A-Z 0-9 _ . - (not . or .. alone)` +
			`|1:1: error: address is missing: want a list of addresses with prefix, e.g. [10.9.0.1/30]` +
			`|1:1: error: there are no paths: want at least one, e.g. [{device: eth0, remote: 198.51.100.2}]`},
		{"a key twice", small + "name: other\n", `5:1: error: duplicate key "name": it is already on line 1`},

		{"no name", with("name: office", "device: d"), `1:1: error: name is missing: want 1…64 of a-z A-Z 0-9 _ . - (not . or .. alone)`},
		{"name empty", with("office", `""`), `1:7: error: name "": want 1…64 of a-z A-Z 0-9 _ . - (not . or .. alone)`},
		{"name is a directory", with("office", `..`), `1:7: error: name "..": want 1…64 of a-z A-Z 0-9 _ . - (not . or .. alone)`},
		{"name too long", with("office", strings.Repeat("n", 65)), `1:7: error: name "` + strings.Repeat("n", 65) + `": want 1…64 of a-z A-Z 0-9 _ . - (not . or .. alone)`},
		{"name too long for a device", with("office", "office-in-berlin"), `1:7: error: device is missing, and the name "office-in-berlin" can't be a device's: want 1…15 bytes without /, :, % and spaces; give one, e.g. device: cleat0`},
		{"device with a slash", small + "device: a/b\n", `5:9: error: device "a/b": want 1…15 bytes without /, :, % and spaces`},
		{"device with a pattern", small + "device: tun%d\n", `5:9: error: device "tun%d": want 1…15 bytes without /, :, % and spaces`},

		{"address without prefix", with("10.9.0.1/30", "fd00::1"), `2:11: error: address "fd00::1": want an address with a prefix, e.g. fd00::1/128`},
		{"address is a name", with("10.9.0.1/30", "office/30"), `2:11: error: address "office/30": want an address with a prefix, e.g. 10.9.0.1/30`},
		{"prefix too long", with("/30", "/33"), `2:11: error: address "10.9.0.1/33": want an address with a prefix, e.g. 10.9.0.1/30`},
		{"prefix of 0", with("/30", "/0"), `2:11: error: address 10.9.0.1/0: want a prefix of 1 or more`},
		{"address of the network", with("10.9.0.1/30", "10.9.0.4/30"), `2:11: error: address 10.9.0.4/30 is that of the network itself: want one within it, e.g. 10.9.0.5/30`},
		{"address of IPv6's routers", with("10.9.0.1/30", "'fd00:9::/64'"), `2:11: error: address fd00:9::/64 is that of the network itself: want one within it, e.g. fd00:9::1/64`},
		{"broadcast address", with("10.9.0.1/30", "10.9.0.7/30"), `2:11: error: address 10.9.0.7/30 is the network's broadcast address: want one within it, e.g. 10.9.0.6/30`},
		{"multicast address", with("10.9.0.1/30", "224.0.0.1/30"), `2:11: error: address 224.0.0.1: want an address of one host's`},
		{"everybody's address", with("10.9.0.1/30", "255.255.255.255/32"), `2:11: error: address 255.255.255.255: want an address of one host's`},
		{"unspecified address", with("10.9.0.1/30", "'::/64'"), `2:11: error: address ::: want an address of one host's`},
		{"loopback address", with("10.9.0.1/30", "127.0.0.1/8"), `2:11: error: address 127.0.0.1: want an address of one host's`},
		{"IPv4 in IPv6", with("10.9.0.1/30", "'::ffff:10.9.0.1/120'"), `2:11: error: address "::ffff:10.9.0.1/120": want an address with a prefix, e.g. 10.9.0.1/30`},
		{"addresses are no list", with("[10.9.0.1/30]", "10.9.0.1/30"), `2:10: error: address: want a list, e.g. [10.9.0.1/30]`},
		{"no address in the list", with("[10.9.0.1/30]", "[]"), `2:10: error: address is missing: want a list of addresses with prefix, e.g. [10.9.0.1/30]`},
		{"multicast route", small + "routes: [224.0.0.0/4]\n", `5:10: error: route 224.0.0.0/4: want addresses of hosts`},
		{"source with more bits", small + "sources: [10.30.0.1/16]\n", `5:11: error: source 10.30.0.1/16 has bits behind its prefix: want 10.30.0.0/16`},
		{"key file's name with an escape", small + "key: {private: \"\\e[2Jx\", peer: " + bobPublic + "}\n", `5:16: error: private "\x1b[2Jx": want a file's name that can be printed`},
		{"metrics with an escape", small + "metrics: \"/run/\\a\"\n", `5:10: error: metrics "/run/\a": want a path that can be printed`},
		{"source twice", small + "sources: [10.20.0.0/16, 10.20.0.0/16]\n", `5:25: error: source 10.20.0.0/16 is given twice`},
		{"source without a prefix", small + "sources: [10.20.0.1]\n", `5:11: error: source "10.20.0.1": want an address with a prefix, e.g. 10.20.0.1/32`},
		{"route twice", small + "routes: [10.20.0.0/16, 10.20.0.0/16]\n", `5:24: error: route 10.20.0.0/16 is given twice`},

		{"inner prefix around a remote", with("10.9.0.1/30", "198.51.100.1/24"), `4:28: error: remote 198.51.100.2 of path "eth0" lies within the tunnel's address 198.51.100.1/24: the tunnel's own packets would go into the tunnel`},
		{"route around a remote", path("local: 192.0.2.1, remote: 198.51.100.2") + "routes: [0.0.0.0/0]\n", `4:32: error: remote 198.51.100.2 of path "path1" lies within the tunnel's route 0.0.0.0/0: the tunnel's own packets would go into the tunnel; ` +
			"bind the path to the device that it goes out by, e.g. `device: eth0`"},
		{"route around a remote, IPv6", path("local: '2001:db8::1', remote: '2001:db8:1::2'") + "routes: ['::/0']\n", `4:36: error: remote 2001:db8:1::2 of path "path1" lies within the tunnel's route ::/0: the tunnel's own packets would go into the tunnel; ` +
			"bind the path to the device that it goes out by, e.g. `device: eth0`"},
		{"inner address outside", path("local: 10.9.0.1, remote: 198.51.100.2"), `4:5: error: path "path1" has the tunnel's inner address 10.9.0.1 outside`},
		{"path through the tunnel", path("device: office, remote: 198.51.100.2"), `4:14: error: path "office" would lead through the tunnel's own device office`},

		{"compat with a key", key("office.key", bobPublic) + "form: compat\n", `8:7: error: the form compat is neither encrypted nor authenticated, and there is a key; remove the key, or use ` + "`form: native`"},
		{"port 0", small + "port: 0\n", `5:7: error: port 0: want 1…65535`},
		{"duplicate without its scheduler", small + "duplicate: 2\n", `5:12: error: duplicate is for the scheduler duplicate, and this one is adaptive; add ` + "`scheduler: duplicate`, or remove it"},
		{"duplicate over three", small + "scheduler: duplicate\nduplicate: 3\n", `6:12: error: duplicate "3": want all or 2`},
		{"hold too short", small + "reorder: {hold: 9ms}\n", `5:17: error: hold 9ms: want 10ms…2s`},
		{"reorder is a word", small + "reorder: on\n", `5:10: error: reorder: want keys with values`},
		{"udp is a word", small + "reorder: {udp: no}\n", `5:16: error: udp: want true or false`},
		{"mtu too small", small + "mtu: 575\n", `5:6: error: mtu 575: want 576…65535 bytes`},
		{"mtu too small for IPv6", with("10.9.0.1/30", "'fd00::1/64'") + "mtu: 1279\n", `5:6: error: mtu 1279: want 1280…65535 bytes`},
		{"mtu too small for IPv6 routes", small + "routes: ['fd00::/64']\nmtu: 1279\n", `6:6: error: mtu 1279: want 1280…65535 bytes`},
		{"queue too long", small + "queue: 1m\n", `5:8: error: queue 1m0s: want 100µs…1s`},
		{"queue below 0", small + "queue: -1ms\n", `5:8: error: queue -1ms: want 100µs…1s`},
		{"compat key too large", small + "compat: {key: 4294967296}\n", `5:15: error: compat key 4294967296: want 0…4294967295`},
		{"metrics for everybody", small + "metrics: 0.0.0.0:9100\n", `5:10: error: metrics "0.0.0.0:9100": want an absolute path, or an address of loopback and a port, e.g. 127.0.0.1:9100`},
		{"metrics without port", small + "metrics: 127.0.0.1\n", `5:10: error: metrics "127.0.0.1": want an absolute path, or an address of loopback and a port, e.g. 127.0.0.1:9100`},
		{"metrics at port 0", small + "metrics: '[::1]:0'\n", `5:10: error: metrics "[::1]:0": want an absolute path, or an address of loopback and a port, e.g. 127.0.0.1:9100`},
		{"metrics' path too long", small + "metrics: /" + strings.Repeat("x", 107) + "\n", `5:10: error: metrics: the path has 108 bytes: want at most 107 bytes`},

		{"key with nothing behind it", small + "key:\n", `5:6: error: key: want keys with values`},
		{"empty key", small + "key: {}\n", `5:6: error: private is missing: want the name of a file with this end's private key` +
			"|5:6: error: peer is missing: want the other end's public key, which `cleat tunnel key` printed there"},
		{"no such key file", key("it's mine.key", bobPublic), `6:12: error: read key: open it's mine.key: file does not exist; make one: cleat tunnel key 'it'\''s mine.key'`},
		{"key file not to be read", key("secret.key", bobPublic), `6:12: error: read key: open secret.key: permission denied`},
		{"key file for the group", key("open.key", bobPublic), `6:12: error: read key open.key: mode 0640: group or others may read it` + chmod + "open.key"},
		{"key file for others", key("public-by-others.key", bobPublic), `6:12: error: read key public-by-others.key: mode 0604: group or others may read it` + chmod + "public-by-others.key"},
		{"key file too short", key("short.key", bobPublic), `6:12: error: read key short.key: parse private key: 40 characters, want the 44 of 32 bytes in base64: not a usable key`},
		{"key file empty", key("empty.key", bobPublic), `6:12: error: read key empty.key: parse private key: 0 characters, want the 44 of 32 bytes in base64: not a usable key`},
		{"key file too long", key("long.key", bobPublic), `6:12: error: read key long.key: parse private key: 1024 characters, want the 44 of 32 bytes in base64: not a usable key`},
		{"key file is a directory", key("directory.key", bobPublic), `6:12: error: read key directory.key: not a regular file: not a usable key`},
		{"private key in the file", small + "key: {private-text: " + alicePrivate + "}\n", `5:6: error: private is missing: want the name of a file with this end's private key` +
			"|5:6: error: peer is missing: want the other end's public key, which `cleat tunnel key` printed there" +
			`|5:7: error: unknown key "private-text"; known: peer, private`},
		{"peer of zeros", key("office.key", strings.Repeat("A", 43)+"="), `7:9: error: peer: parse public key: all zeros: not a usable key`},
		{"peer whose secrets everybody knows", key("office.key", "AQ"+strings.Repeat("A", 41)+"="), `7:9: error: peer: parse public key: a point of low order: not a usable key`},
		{"peer in base64 of another kind", key("office.key", strings.Repeat("_", 43)+"="), `7:9: error: peer: parse public key: not base64 of 32 bytes: not a usable key`},
		{"peer is ourselves", key("office.key", alicePublic), `7:9: error: peer is this end's own public key; it is the other end's that belongs here`},

		{"no paths", "name: x\naddress: [10.9.0.1/30]\n", `1:1: error: there are no paths: want at least one, e.g. [{device: eth0, remote: 198.51.100.2}]`},
		{"no path in the list", "name: x\naddress: [10.9.0.1/30]\npaths: []\n", `3:8: error: there are no paths: want at least one, e.g. [{device: eth0, remote: 198.51.100.2}]`},
		{"a path is a word", with("{device: eth0, remote: 198.51.100.2}", "eth0"), `4:5: error: paths: want keys with values`},
		{"path without remote", path("device: eth0"), `4:5: error: remote is missing: want an IP address, with its port if it is another: 198.51.100.2:4755, [2001:db8::1]:4755`},
		{"path without beginning", path("remote: 198.51.100.2"), `4:5: error: path "path1" has neither device nor local; say where it begins, e.g. device: eth0`},
		{"two paths without beginning", path("remote: 198.51.100.2") + "  - {remote: 198.51.100.2}\n", `4:5: error: path "path1" has neither device nor local; say where it begins, e.g. device: eth0` +
			`|5:5: error: path "path2" has neither device nor local; say where it begins, e.g. device: eth0`},
		{"path name with a space", path("name: a b, device: eth0, remote: 198.51.100.2"), `4:12: error: path name "a b": want 1…32 of a-z A-Z 0-9 _ . - (not . or .. alone)`},
		{"path name too long", path("name: " + strings.Repeat("n", 33) + ", device: eth0, remote: 198.51.100.2"), `4:12: error: path name "` + strings.Repeat("n", 33) + `": want 1…32 of a-z A-Z 0-9 _ . - (not . or .. alone)`},
		{"path name twice", path("name: a, device: eth0, remote: 198.51.100.2") + "  - {name: a, device: eth1, remote: 198.51.100.2}\n", `5:12: error: path name "a" is given twice: the path on line 4 has it too`},
		{"device twice", path("device: eth0, remote: 198.51.100.2") + "  - {device: eth0, remote: 198.51.100.3}\n", `5:5: error: path name "eth0" is given twice: the path on line 4 has it too; give it a name of its own: without one it has its device's`},
		{"path device too long", path("device: abcdefghijklmnop, remote: 198.51.100.2"), `4:14: error: device "abcdefghijklmnop": want 1…15 bytes without /, :, % and spaces`},
		{"remote is a name", path("device: eth0, remote: office.example.com"), `4:28: error: remote "office.example.com": want an IP address, with its port if it is another: 198.51.100.2:4755, [2001:db8::1]:4755`},
		{"remote port 0", path("device: eth0, remote: 198.51.100.2:0"), `4:28: error: remote "198.51.100.2:0": want an IP address, with its port if it is another: 198.51.100.2:4755, [2001:db8::1]:4755`},
		{"remote with a zone", path("device: eth0, remote: fe80::1%eth0"), `4:28: error: remote fe80::1%eth0: want an address without zone, and the path's device`},
		{"remote on the link", path("local: fe80::2, remote: fe80::1"), `4:30: error: remote fe80::1 is on each link another: the path needs a device; add ` + "`device:`"},
		{"remote multicast", path("device: eth0, remote: 'ff02::1'"), `4:28: error: remote ff02::1: want an address of one host's`},
		{"remote unspecified", path("device: eth0, remote: 0.0.0.0"), `4:28: error: remote 0.0.0.0: want an address of one host's`},
		{"remote broadcast", path("device: eth0, remote: 255.255.255.255"), `4:28: error: remote 255.255.255.255: want an address of one host's`},
		{"remote IPv4 in IPv6", path("device: eth0, remote: '::ffff:198.51.100.2'"), `4:28: error: remote ::ffff:198.51.100.2 is IPv4 in IPv6's clothes: want 198.51.100.2`},
		{"local with a port", path("local: '192.0.2.1:4755', remote: 198.51.100.2"), `4:13: error: local "192.0.2.1:4755": want an IP address; the local port is ` + "`port:`"},
		{"local of another family", path("local: '2001:db8::1', remote: 198.51.100.2"), `4:13: error: local 2001:db8::1 is of IPv6: want an address of remote's family, IPv4`},
		{"local is remote", path("local: 198.51.100.2, remote: 198.51.100.2"), `4:13: error: local and remote are both 198.51.100.2`},
		{"local multicast", path("local: 224.0.0.1, remote: 198.51.100.2"), `4:13: error: local 224.0.0.1: want an address of one host's`},
		{"local port too large", path("device: eth0, remote: 198.51.100.2, port: 65536"), `4:48: error: port 65536: want 1…65535`},
		{"rate too small", path("device: eth0, remote: 198.51.100.2, rate: 63.9K"), `4:48: error: rate "63.9K": want 64K…1000T bit/s`},
		{"rate too large", path("device: eth0, remote: 198.51.100.2, rate: 1001T"), `4:48: error: rate "1001T": want 64K…1000T bit/s`},
		{"rate is a word", path("device: eth0, remote: 198.51.100.2, rate: fast"), `4:48: error: rate "fast": want a number above 0 in bit/s, with an optional k, M, G or T`},
		{"weight 0", path("device: eth0, remote: 198.51.100.2, weight: 0") + "scheduler: weighted\n", `4:50: error: weight 0: want 1…10000`},
		{"path mtu too small", path("device: eth0, remote: 198.51.100.2, mtu: 575"), `4:47: error: mtu 575: want 576…65535 bytes`},
		{"path mtu too small outside in IPv6", path("device: eth0, remote: '2001:db8::1', mtu: 1279"), `4:48: error: mtu 1279: want 1280…65535 bytes`},
		{"path mtu too small for inner IPv6", strings.Replace(path("device: eth0, remote: 198.51.100.2, mtu: 1315"), "10.9.0.1/30", "'fd00::1/64'", 1), `4:47: error: mtu 1315: want 1316 or more, for inner IPv6: 1280 and at least 36 around it`},
		{"the same with a GRE key", strings.Replace(path("device: eth0, remote: 198.51.100.2, mtu: 1319"), "10.9.0.1/30", "'fd00::1/64'", 1) + "compat: {key: 1}\n", `4:47: error: mtu 1319: want 1320 or more, for inner IPv6: 1280 and at least 40 around it`},
		{"the same in the native form", strings.Replace(path("device: eth0, remote: 198.51.100.2, mtu: 1331"), "10.9.0.1/30", "'fd00::1/64'", 1) + "form: native\n", `4:47: error: mtu 1331: want 1332 or more, for inner IPv6: 1280 and at least 52 around it`},
		{"the same over IPv6 with a key", strings.Replace(path("device: eth0, remote: '2001:db8::1', mtu: 1367"), "10.9.0.1/30", "'fd00::1/64'", 1) + key("office.key", bobPublic)[len(small):], `4:48: error: mtu 1367: want 1368 or more, for inner IPv6: 1280 and at least 88 around it`},
		{"two paths alike", path("name: a, local: 192.0.2.1, remote: 198.51.100.2") + "  - {name: b, device: eth0, local: 192.0.2.1, remote: '198.51.100.2:4754'}\n", `5:5: error: path "b" is the same as path "a": both go from 192.0.2.1:4754 to 198.51.100.2:4754; they must differ in device, local, remote or a port`},
		{"two paths of one device alike", path("name: a, device: eth0, remote: 198.51.100.2") + "  - {name: b, device: eth0, remote: 198.51.100.2}\n", `5:5: error: path "b" is the same as path "a": both go from eth0, port 4754 to 198.51.100.2:4754; they must differ in device, local, remote or a port`},

		{"weight for nothing", path("device: eth0, remote: 198.51.100.2, weight: 2"), `4:50: warning: weight does nothing: it is for the scheduler weighted, and this one is adaptive`},
		{"compat for nothing", small + "form: native\ncompat: {key: 1}\n", `6:9: warning: compat does nothing: the form is native`},
		{"compat with a key for nothing", key("office.key", bobPublic) + "compat: {key: 1}\n", `8:9: warning: compat does nothing: with a key the form is native`},
		{"compat without order", small + "form: compat\ncompat: {sequence: false}\n", `6:20: warning: without sequence numbers nothing is put in order`},
		{"hold for nothing", small + "reorder: {tcp: false, udp: false, hold: 1s}\n", `5:41: warning: hold does nothing: neither tcp nor udp is put in order`},
		{"all paths down", path("device: eth0, remote: 198.51.100.2, state: down"), `4:3: warning: all paths are down: nothing will get through`},
		{"tunnel mtu beyond a path's", path("device: eth0, remote: 198.51.100.2, mtu: 1400") + "mtu: 1365\n", `4:47: warning: path "eth0" has room for inner packets of 1364 bytes at most, and the tunnel's mtu is 1365`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := load(t, tt.text)
			var got []string
			for _, e := range f.Findings {
				got = append(got, strings.TrimPrefix(e.String(), "f.yaml:"))
			}
			if joined := strings.Join(got, "|"); joined != tt.want {
				t.Errorf("got  %s\nwant %s", joined, tt.want)
			}
			if want := !strings.Contains(tt.want, "error"); (f.Tunnel != nil) != want {
				t.Errorf("tunnel %v", f.Tunnel)
			}
			for _, e := range f.Findings {
				if strings.Contains(e.String(), alicePrivate) {
					t.Errorf("a finding has the private key: %s", e)
				}
			}
		})
	}
}

func TestTooManyPaths(t *testing.T) {
	text := "name: x\naddress: [10.9.0.1/30]\npaths:\n"
	for i := range MaxPaths {
		text += fmt.Sprintf("  - {device: eth%d, remote: 198.51.100.2}\n", i)
	}
	if f := load(t, text); len(f.Findings) > 0 || len(f.Tunnel.Paths) != MaxPaths {
		t.Errorf("%d paths: %v", MaxPaths, f.Findings)
	}
	f := load(t, text+"  - {device: one, remote: 198.51.100.2}\n  - {device: two}\n")
	want := "f.yaml:68:5: error: there are 66 paths: want at most 64"
	if len(f.Findings) != 1 || f.Findings[0].String() != want {
		t.Errorf("got %v, want %s", f.Findings, want)
	}
}

func TestFindingsSayWhatIsAllowed(t *testing.T) {
	for _, tt := range []struct{ text, allowed, hint string }{
		{small + "form: natve\n", "auto, native, compat", `did you mean "native"?`},
		{small + "colour: red\n", "name, device, address, routes, sources, form, port, scheduler, duplicate, reorder, mtu, queue, key, compat, metrics, paths", "known: "},
		{small + "port: 0\n", "1…65535", ""},
		{small + "mtu: x\n", "a whole number", ""},
	} {
		e := load(t, tt.text).Findings[0]
		if e.Allowed != tt.allowed || !strings.HasPrefix(e.Hint, tt.hint) {
			t.Errorf("%s: allowed %q, hint %q", e, e.Allowed, e.Hint)
		}
	}
}
