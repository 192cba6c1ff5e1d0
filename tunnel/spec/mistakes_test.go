package spec

import (
	"fmt"
	"strings"
	"testing"
)

// everyMistake has a mistake in nearly every line.
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
f.yaml:1:7: error: name "of fice": want 1…64 of a-z A-Z 0-9 _ . - (but not . or ..)
f.yaml:2:1: error: unknown key "devcie"; did you mean "device"?
f.yaml:3:11: error: address "10.9.0.1": want an address with a prefix, e.g. 10.9.0.1/32
f.yaml:3:34: error: address 10.9.0.1 is listed twice
f.yaml:4:10: error: route 10.20.0.1/16 has host bits set: want 10.20.0.0/16
f.yaml:5:7: error: unknown form "natve"; did you mean "native"?
f.yaml:6:7: error: port 70000: want 1…65535
f.yaml:7:12: error: unknown scheduler "adaptve"; did you mean "adaptive"?
f.yaml:8:17: error: hold 5s: want 10ms…2s
f.yaml:9:6: error: mtu: want a whole number
f.yaml:10:8: error: duration "3": want a number and a unit, e.g. 500ms, 2s, 1m
f.yaml:11:16: error: read key: open missing.key: file does not exist; create one: cleat tunnel key missing.key
f.yaml:11:35: error: peer: parse public key: 1 characters, want 44 (32 bytes in base64): not a usable key
f.yaml:12:10: error: metrics "run/office": want an absolute path, or a loopback address and a port, e.g. 127.0.0.1:9100
f.yaml:14:5: error: path "path1" has neither device nor local; add the device that it starts at, e.g. device: eth0
f.yaml:14:34: error: rate "1k": want 64K…1000T bit/s
f.yaml:14:45: error: unknown state "on"; known: down, up
f.yaml:15:27: error: local 192.0.2.1 is IPv4: want an address of remote's family, IPv6
f.yaml:15:61: error: unknown key "colour"; known: device, local, metered, mtu, name, port, rate, remote, state, weight
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
		t.Error("got a tunnel")
	}
}

// with returns the small file with a text replaced.
func with(old, new string) string {
	if !strings.Contains(small, old) {
		panic(old)
	}
	return strings.Replace(small, old, new, 1)
}

// path returns the small file with other keys of its path.
func path(keys string) string { return with("{device: eth0, remote: 198.51.100.2}", "{"+keys+"}") }

// key returns the small file with a key.
func key(private, peer string) string {
	return small + "key:\n  private: " + private + "\n  peer: " + peer + "\n"
}

func TestMistakes(t *testing.T) {
	const chmod = "; chmod go= "
	for _, tt := range []struct{ name, text, want string }{
		{"nothing", "", `1:1: error: want one YAML document with the keys name, device, address, routes, sources, form, port, scheduler, duplicate, reorder, mtu, queue, datapath, key, compat, metrics, paths`},
		{"not YAML", "name: [", `1:7: error: sequence end token ']' not found`},
		{"not a mapping", "- x", `1:1: error: want keys with values`},
		{"too large", "#" + strings.Repeat(" ", maxFileBytes), `1:1: error: the file is too large: want at most 64 KiB`},
		{"empty mapping", "{}", `1:1: error: name is missing: want 1…64 of a-z A-Z 0-9 _ . - (but not . or ..)` +
			`|1:1: error: address is missing: want a list of addresses with prefix, e.g. [10.9.0.1/30]` +
			`|1:1: error: no paths: want at least one, e.g. [{device: eth0, remote: 198.51.100.2}]`},
		{"duplicate key", small + "name: other\n", `5:1: error: duplicate key "name": it is already on line 1`},

		{"no name", with("name: office", "device: d"), `1:1: error: name is missing: want 1…64 of a-z A-Z 0-9 _ . - (but not . or ..)`},
		{"empty name", with("office", `""`), `1:7: error: name "": want 1…64 of a-z A-Z 0-9 _ . - (but not . or ..)`},
		{"name is a directory", with("office", `..`), `1:7: error: name "..": want 1…64 of a-z A-Z 0-9 _ . - (but not . or ..)`},
		{"name too long", with("office", strings.Repeat("n", 65)), `1:7: error: name "` + strings.Repeat("n", 65) + `": want 1…64 of a-z A-Z 0-9 _ . - (but not . or ..)`},
		{"name too long for a device", with("office", "office-in-berlin"), `1:7: error: device is missing, and the name "office-in-berlin" is no valid device name: want 1…15 bytes without /, :, % or spaces; add one, e.g. device: cleat0`},
		{"device with a slash", small + "device: a/b\n", `5:9: error: device "a/b": want 1…15 bytes without /, :, % or spaces`},
		{"device with a pattern", small + "device: tun%d\n", `5:9: error: device "tun%d": want 1…15 bytes without /, :, % or spaces`},

		{"address without prefix", with("10.9.0.1/30", "fd00::1"), `2:11: error: address "fd00::1": want an address with a prefix, e.g. fd00::1/128`},
		{"address is a name", with("10.9.0.1/30", "office/30"), `2:11: error: address "office/30": want an address with a prefix, e.g. 10.9.0.1/30`},
		{"prefix too long", with("/30", "/33"), `2:11: error: address "10.9.0.1/33": want an address with a prefix, e.g. 10.9.0.1/30`},
		{"prefix of 0", with("/30", "/0"), `2:11: error: address 10.9.0.1/0: want a prefix length of 1 or more`},
		{"address of the network", with("10.9.0.1/30", "10.9.0.4/30"), `2:11: error: address 10.9.0.4/30 is the network's own address: want a host's address in it, e.g. 10.9.0.5/30`},
		{"address of all routers, IPv6", with("10.9.0.1/30", "'fd00:9::/64'"), `2:11: error: address fd00:9::/64 is the network's own address: want a host's address in it, e.g. fd00:9::1/64`},
		{"broadcast address", with("10.9.0.1/30", "10.9.0.7/30"), `2:11: error: address 10.9.0.7/30 is the network's broadcast address: want a host's address in it, e.g. 10.9.0.6/30`},
		{"multicast address", with("10.9.0.1/30", "224.0.0.1/30"), `2:11: error: address 224.0.0.1: want a unicast address`},
		{"limited broadcast address", with("10.9.0.1/30", "255.255.255.255/32"), `2:11: error: address 255.255.255.255: want a unicast address`},
		{"unspecified address", with("10.9.0.1/30", "'::/64'"), `2:11: error: address ::: want a unicast address`},
		{"loopback address", with("10.9.0.1/30", "127.0.0.1/8"), `2:11: error: address 127.0.0.1: want a unicast address`},
		{"IPv4-mapped address", with("10.9.0.1/30", "'::ffff:10.9.0.1/120'"), `2:11: error: address "::ffff:10.9.0.1/120": want an address with a prefix, e.g. 10.9.0.1/30`},
		{"addresses are not a list", with("[10.9.0.1/30]", "10.9.0.1/30"), `2:10: error: address: want a list, e.g. [10.9.0.1/30]`},
		{"empty list of addresses", with("[10.9.0.1/30]", "[]"), `2:10: error: address is missing: want a list of addresses with prefix, e.g. [10.9.0.1/30]`},
		{"multicast route", small + "routes: [224.0.0.0/4]\n", `5:10: error: route 224.0.0.0/4: want unicast addresses`},
		{"source with host bits", small + "sources: [10.30.0.1/16]\n", `5:11: error: source 10.30.0.1/16 has host bits set: want 10.30.0.0/16`},
		{"key file name with an escape sequence", small + "key: {private: \"\\e[2Jx\", peer: " + bobPublic + "}\n", `5:16: error: private "\x1b[2Jx": want a file name of printable characters`},
		{"metrics with an escape sequence", small + "metrics: \"/run/\\a\"\n", `5:10: error: metrics "/run/\a": want a path of printable characters`},
		{"duplicate source", small + "sources: [10.20.0.0/16, 10.20.0.0/16]\n", `5:25: error: source 10.20.0.0/16 is listed twice`},
		{"source without a prefix", small + "sources: [10.20.0.1]\n", `5:11: error: source "10.20.0.1": want an address with a prefix, e.g. 10.20.0.1/32`},
		{"duplicate route", small + "routes: [10.20.0.0/16, 10.20.0.0/16]\n", `5:24: error: route 10.20.0.0/16 is listed twice`},

		{"inner prefix covers a remote", with("10.9.0.1/30", "198.51.100.1/24"), `4:28: error: remote 198.51.100.2 of path "eth0" lies within the tunnel's address 198.51.100.1/24: the tunnel's own packets would go into the tunnel`},
		{"route covers a remote", path("local: 192.0.2.1, remote: 198.51.100.2") + "routes: [0.0.0.0/0]\n", `4:32: error: remote 198.51.100.2 of path "path1" lies within the tunnel's route 0.0.0.0/0: the tunnel's own packets would go into the tunnel; ` +
			"bind the path to its outgoing device, e.g. `device: eth0`"},
		{"route covers a remote, IPv6", path("local: '2001:db8::1', remote: '2001:db8:1::2'") + "routes: ['::/0']\n", `4:36: error: remote 2001:db8:1::2 of path "path1" lies within the tunnel's route ::/0: the tunnel's own packets would go into the tunnel; ` +
			"bind the path to its outgoing device, e.g. `device: eth0`"},
		{"inner address as a remote", path("local: 10.9.0.1, remote: 198.51.100.2"), `4:5: error: path "path1" uses the tunnel's inner address 10.9.0.1 as an outer address`},
		{"path through the tunnel", path("device: office, remote: 198.51.100.2"), `4:14: error: path "office" uses the tunnel's own device office`},

		{"compat with a key", key("office.key", bobPublic) + "form: compat\n", `8:7: error: the form compat can't use a key: it is neither encrypted nor authenticated; remove the key, or use ` + "`form: native`"},
		{"port 0", small + "port: 0\n", `5:7: error: port 0: want 1…65535`},
		{"duplicate with another scheduler", small + "duplicate: 2\n", `5:12: error: duplicate is a setting of the scheduler duplicate, and the scheduler is adaptive; add ` + "`scheduler: duplicate`, or remove duplicate"},
		{"duplicate on three paths", small + "scheduler: duplicate\nduplicate: 3\n", `6:12: error: duplicate "3": want all or 2`},
		{"hold too short", small + "reorder: {hold: 9ms}\n", `5:17: error: hold 9ms: want 10ms…2s`},
		{"reorder is a word", small + "reorder: on\n", `5:10: error: reorder: want keys with values`},
		{"udp is a word", small + "reorder: {udp: no}\n", `5:16: error: udp: want true or false`},
		{"mtu too small", small + "mtu: 575\n", `5:6: error: mtu 575: want 576…65535 bytes`},
		{"mtu too small for IPv6", with("10.9.0.1/30", "'fd00::1/64'") + "mtu: 1279\n", `5:6: error: mtu 1279: want 1280…65535 bytes`},
		{"mtu too small for IPv6 routes", small + "routes: ['fd00::/64']\nmtu: 1279\n", `6:6: error: mtu 1279: want 1280…65535 bytes`},
		{"queue too long", small + "queue: 1m\n", `5:8: error: queue 1m0s: want 100µs…1s`},
		{"queue below 0", small + "queue: -1ms\n", `5:8: error: queue -1ms: want 100µs…1s`},
		{"compat key too large", small + "compat: {key: 4294967296}\n", `5:15: error: compat key 4294967296: want 0…4294967295`},
		{"metrics on a public address", small + "metrics: 0.0.0.0:9100\n", `5:10: error: metrics "0.0.0.0:9100": want an absolute path, or a loopback address and a port, e.g. 127.0.0.1:9100`},
		{"metrics without port", small + "metrics: 127.0.0.1\n", `5:10: error: metrics "127.0.0.1": want an absolute path, or a loopback address and a port, e.g. 127.0.0.1:9100`},
		{"metrics at port 0", small + "metrics: '[::1]:0'\n", `5:10: error: metrics "[::1]:0": want an absolute path, or a loopback address and a port, e.g. 127.0.0.1:9100`},
		{"metrics path too long", small + "metrics: /" + strings.Repeat("x", 107) + "\n", `5:10: error: metrics: the path has 108 bytes: want at most 107 bytes`},

		{"key without a value", small + "key:\n", `5:6: error: key: want keys with values`},
		{"empty key", small + "key: {}\n", `5:6: error: private is missing: want the name of the file with this end's private key` +
			"|5:6: error: peer is missing: want the public key that `cleat tunnel key` printed at the other end"},
		{"missing key file", key("it's mine.key", bobPublic), `6:12: error: read key: open it's mine.key: file does not exist; create one: cleat tunnel key 'it'\''s mine.key'`},
		{"unreadable key file", key("secret.key", bobPublic), `6:12: error: read key: open secret.key: permission denied`},
		{"key file readable by group", key("open.key", bobPublic), `6:12: error: read key open.key: mode 0640: group or others may read it` + chmod + "open.key"},
		{"key file readable by others", key("public-by-others.key", bobPublic), `6:12: error: read key public-by-others.key: mode 0604: group or others may read it` + chmod + "public-by-others.key"},
		{"key file too short", key("short.key", bobPublic), `6:12: error: read key short.key: parse private key: 40 characters, want 44 (32 bytes in base64): not a usable key`},
		{"empty key file", key("empty.key", bobPublic), `6:12: error: read key empty.key: parse private key: 0 characters, want 44 (32 bytes in base64): not a usable key`},
		{"key file too long", key("long.key", bobPublic), `6:12: error: read key long.key: parse private key: 1024 characters, want 44 (32 bytes in base64): not a usable key`},
		{"key file is a directory", key("directory.key", bobPublic), `6:12: error: read key directory.key: not a regular file: not a usable key`},
		{"private key in the file", small + "key: {private-text: " + alicePrivate + "}\n", `5:6: error: private is missing: want the name of the file with this end's private key` +
			"|5:6: error: peer is missing: want the public key that `cleat tunnel key` printed at the other end" +
			`|5:7: error: unknown key "private-text"; known: peer, private`},
		{"peer of zeros", key("office.key", strings.Repeat("A", 43)+"="), `7:9: error: peer: parse public key: all zeros: not a usable key`},
		{"peer of low order", key("office.key", "AQ"+strings.Repeat("A", 41)+"="), `7:9: error: peer: parse public key: point of low order: not a usable key`},
		{"peer in URL base64", key("office.key", strings.Repeat("_", 43)+"="), `7:9: error: peer: parse public key: not base64 of 32 bytes: not a usable key`},
		{"peer is this end", key("office.key", alicePublic), `7:9: error: peer is this end's own public key; use the other end's public key`},

		{"no paths", "name: x\naddress: [10.9.0.1/30]\n", `1:1: error: no paths: want at least one, e.g. [{device: eth0, remote: 198.51.100.2}]`},
		{"empty list of paths", "name: x\naddress: [10.9.0.1/30]\npaths: []\n", `3:8: error: no paths: want at least one, e.g. [{device: eth0, remote: 198.51.100.2}]`},
		{"a path is a word", with("{device: eth0, remote: 198.51.100.2}", "eth0"), `4:5: error: paths: want keys with values`},
		{"path without remote", path("device: eth0"), `4:5: error: remote is missing: want an IP address, with a port if it differs from the tunnel's: 198.51.100.2:4755, [2001:db8::1]:4755; it may be left out only at one end of a tunnel with keys; add ` + "`remote:`; or `key:` at both ends, see `cleat tunnel key --help`"},
		{"path without device and local", path("remote: 198.51.100.2"), `4:5: error: path "path1" has neither device nor local; add the device that it starts at, e.g. device: eth0`},
		{"two paths without device and local", path("remote: 198.51.100.2") + "  - {remote: 198.51.100.2}\n", `4:5: error: path "path1" has neither device nor local; add the device that it starts at, e.g. device: eth0` +
			`|5:5: error: path "path2" has neither device nor local; add the device that it starts at, e.g. device: eth0`},
		{"path name with a space", path("name: a b, device: eth0, remote: 198.51.100.2"), `4:12: error: path name "a b": want 1…32 of a-z A-Z 0-9 _ . - (but not . or ..)`},
		{"path name too long", path("name: " + strings.Repeat("n", 33) + ", device: eth0, remote: 198.51.100.2"), `4:12: error: path name "` + strings.Repeat("n", 33) + `": want 1…32 of a-z A-Z 0-9 _ . - (but not . or ..)`},
		{"duplicate path name", path("name: a, device: eth0, remote: 198.51.100.2") + "  - {name: a, device: eth1, remote: 198.51.100.2}\n", `5:12: error: path name "a" is already used on line 4`},
		{"duplicate device", path("device: eth0, remote: 198.51.100.2") + "  - {device: eth0, remote: 198.51.100.3}\n", `5:5: error: path name "eth0" is already used on line 4; add a name: the default is the name of the device`},
		{"path device too long", path("device: abcdefghijklmnop, remote: 198.51.100.2"), `4:14: error: device "abcdefghijklmnop": want 1…15 bytes without /, :, % or spaces`},
		{"remote is a name", path("device: eth0, remote: office.example.com"), `4:28: error: remote "office.example.com": want an IP address, with a port if it differs from the tunnel's: 198.51.100.2:4755, [2001:db8::1]:4755`},
		{"remote port 0", path("device: eth0, remote: 198.51.100.2:0"), `4:28: error: remote "198.51.100.2:0": want an IP address, with a port if it differs from the tunnel's: 198.51.100.2:4755, [2001:db8::1]:4755`},
		{"remote with a zone", path("device: eth0, remote: fe80::1%eth0"), `4:28: error: remote fe80::1%eth0: want an address without a zone; the path's device selects the link`},
		{"link-local remote", path("local: fe80::2, remote: fe80::1"), `4:30: error: remote fe80::1 is link-local: the path needs a device; add ` + "`device:`"},
		{"remote multicast", path("device: eth0, remote: 'ff02::1'"), `4:28: error: remote ff02::1: want a unicast address`},
		{"remote unspecified", path("device: eth0, remote: 0.0.0.0"), `4:28: error: remote 0.0.0.0: want a unicast address`},
		{"remote broadcast", path("device: eth0, remote: 255.255.255.255"), `4:28: error: remote 255.255.255.255: want a unicast address`},
		{"IPv4-mapped remote", path("device: eth0, remote: '::ffff:198.51.100.2'"), `4:28: error: remote ::ffff:198.51.100.2 is an IPv4-mapped IPv6 address: want 198.51.100.2`},
		{"local with a port", path("local: '192.0.2.1:4755', remote: 198.51.100.2"), `4:13: error: local "192.0.2.1:4755": want an IP address; set the local port with ` + "`port:`"},
		{"local of another family", path("local: '2001:db8::1', remote: 198.51.100.2"), `4:13: error: local 2001:db8::1 is IPv6: want an address of remote's family, IPv4`},
		{"local is remote", path("local: 198.51.100.2, remote: 198.51.100.2"), `4:13: error: local and remote are both 198.51.100.2`},
		{"local multicast", path("local: 224.0.0.1, remote: 198.51.100.2"), `4:13: error: local 224.0.0.1: want a unicast address`},
		{"local port too large", path("device: eth0, remote: 198.51.100.2, port: 65536"), `4:48: error: port 65536: want 1…65535`},
		{"rate too small", path("device: eth0, remote: 198.51.100.2, rate: 63.9K"), `4:48: error: rate "63.9K": want 64K…1000T bit/s`},
		{"rate too large", path("device: eth0, remote: 198.51.100.2, rate: 1001T"), `4:48: error: rate "1001T": want 64K…1000T bit/s`},
		{"rate is a word", path("device: eth0, remote: 198.51.100.2, rate: fast"), `4:48: error: rate "fast": want a number above 0 in bit/s, with an optional k, M, G or T`},
		{"weight 0", path("device: eth0, remote: 198.51.100.2, weight: 0") + "scheduler: weighted\n", `4:50: error: weight 0: want 1…10000`},
		{"path mtu too small", path("device: eth0, remote: 198.51.100.2, mtu: 575"), `4:47: error: mtu 575: want 576…65535 bytes`},
		{"path mtu too small for outer IPv6", path("device: eth0, remote: '2001:db8::1', mtu: 1279"), `4:48: error: mtu 1279: want 1280…65535 bytes`},
		{"path mtu too small for inner IPv6", strings.Replace(path("device: eth0, remote: 198.51.100.2, mtu: 1315"), "10.9.0.1/30", "'fd00::1/64'", 1), `4:47: error: mtu 1315: want 1316 or more for inner IPv6: 1280 and at least 36 of headers`},
		{"path mtu too small for inner IPv6 and a GRE key", strings.Replace(path("device: eth0, remote: 198.51.100.2, mtu: 1319"), "10.9.0.1/30", "'fd00::1/64'", 1) + "compat: {key: 1}\n", `4:47: error: mtu 1319: want 1320 or more for inner IPv6: 1280 and at least 40 of headers`},
		{"path mtu too small for inner IPv6, native", strings.Replace(path("device: eth0, remote: 198.51.100.2, mtu: 1331"), "10.9.0.1/30", "'fd00::1/64'", 1) + "form: native\n", `4:47: error: mtu 1331: want 1332 or more for inner IPv6: 1280 and at least 52 of headers`},
		{"path mtu too small for inner IPv6 over IPv6 with a key", strings.Replace(path("device: eth0, remote: '2001:db8::1', mtu: 1367"), "10.9.0.1/30", "'fd00::1/64'", 1) + key("office.key", bobPublic)[len(small):], `4:48: error: mtu 1367: want 1368 or more for inner IPv6: 1280 and at least 88 of headers`},
		{"duplicate path", path("name: a, local: 192.0.2.1, remote: 198.51.100.2") + "  - {name: b, device: eth0, local: 192.0.2.1, remote: '198.51.100.2:4754'}\n", `5:5: error: path "b" duplicates path "a": both go from 192.0.2.1:4754 to 198.51.100.2:4754; they must differ in device, local, remote or a port`},
		{"duplicate path on one device", path("name: a, device: eth0, remote: 198.51.100.2") + "  - {name: b, device: eth0, remote: 198.51.100.2}\n", `5:5: error: path "b" duplicates path "a": both go from eth0, port 4754 to 198.51.100.2:4754; they must differ in device, local, remote or a port`},

		{"useless weight", path("device: eth0, remote: 198.51.100.2, weight: 2"), `4:50: warning: weight has no effect: it is a setting of the scheduler weighted, and the scheduler is adaptive`},
		{"useless compat", small + "form: native\ncompat: {key: 1}\n", `6:9: warning: compat has no effect: the form is native`},
		{"useless compat with a key", key("office.key", bobPublic) + "compat: {key: 1}\n", `8:9: warning: compat has no effect: with a key the form is native`},
		{"compat without sequence numbers", small + "form: compat\ncompat: {sequence: false}\n", `6:20: warning: without sequence numbers nothing is put in order`},
		{"useless hold", small + "reorder: {tcp: false, udp: false, hold: 1s}\n", `5:41: warning: hold has no effect: neither tcp nor udp is put in order`},
		{"all paths down", path("device: eth0, remote: 198.51.100.2, state: down"), `4:3: warning: all paths are down: no packets get through`},
		{"tunnel mtu above a path's", path("device: eth0, remote: 198.51.100.2, mtu: 1400") + "mtu: 1365\n", `4:47: warning: path "eth0" carries inner packets of at most 1364 bytes, and the tunnel's mtu is 1365`},
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
					t.Errorf("a finding contains the private key: %s", e)
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
	want := "f.yaml:68:5: error: 66 paths: want at most 64"
	if len(f.Findings) != 1 || f.Findings[0].String() != want {
		t.Errorf("got %v, want %s", f.Findings, want)
	}
}

func TestFindingsSayWhatIsAllowed(t *testing.T) {
	for _, tt := range []struct{ text, allowed, hint string }{
		{small + "form: natve\n", "auto, native, compat", `did you mean "native"?`},
		{small + "colour: red\n", "name, device, address, routes, sources, form, port, scheduler, duplicate, reorder, mtu, queue, datapath, key, compat, metrics, paths", "known: "},
		{small + "port: 0\n", "1…65535", ""},
		{small + "mtu: x\n", "a whole number", ""},
	} {
		e := load(t, tt.text).Findings[0]
		if e.Allowed != tt.allowed || !strings.HasPrefix(e.Hint, tt.hint) {
			t.Errorf("%s: allowed %q, hint %q", e, e.Allowed, e.Hint)
		}
	}
}
