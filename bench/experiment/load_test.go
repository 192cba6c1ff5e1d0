package experiment

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestPresets(t *testing.T) {
	files, err := presetFiles.ReadDir("presets")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(presets) {
		t.Errorf("%d files for %d presets", len(files), len(presets))
	}
	for _, name := range PresetNames() {
		t.Run(name, func(t *testing.T) {
			e, err := Load(name)
			if err != nil {
				t.Fatal(err)
			}
			if e.Name != name || e.Title == "" || e.Description == "" {
				t.Errorf("name %q, title %q, description %q", e.Name, e.Title, e.Description)
			}
			if len(e.Jobs()) == 0 {
				t.Error("has no jobs")
			}
		})
	}
	if got := Presets(); len(got) != len(presets) || got[0].Name != "quick" {
		t.Errorf("Presets() = %v", got)
	}
}

func TestLoadFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mine.yaml")
	text := "name: mine\ngroups:\n  - networks: [veth]\n    work: [{kind: tcp, duration: 1s}]\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	e, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if e.Name != "mine" || e.Repeat != 10 || e.Warmup != 1 {
		t.Errorf("got %+v; want 10 blocks and a warm-up by default", e)
	}
	_, err = Load(path + "/nothing.yaml")
	if err == nil || errors.As(err, new(*Error)) {
		t.Errorf("a missing file: %v, want an error other than *Error", err)
	}
}

func TestLoadUnknownPreset(t *testing.T) {
	_, err := Load("quikc")
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v", err)
	}
	if got, want := e.Error(), `unknown preset "quikc"`; got != want {
		t.Errorf("Error() = %s, want %s", got, want)
	}
	if got, want := e.Hint(), `did you mean "quick"?`; got != want {
		t.Errorf("Hint() = %s, want %s", got, want)
	}
}

// group returns a file with one group and the given lines.
func group(lines ...string) string {
	return "name: x\ngroups:\n  - networks: [veth]\n    work: [{kind: udp, duration: 1s}]\n    " + strings.Join(lines, "\n    ") + "\n"
}

func TestParseErrors(t *testing.T) {
	for _, tt := range []struct{ name, text, want, hint string }{
		{"unknown key at the top", "name: x\nrepeet: 3\n", `f.yaml:2:1: unknown key "repeet"`, `did you mean "repeat"?`},
		{"unknown key in a group", "name: x\ngroups:\n  - netwroks: [veth]\n", `f.yaml:3:5: unknown key "netwroks"`, `did you mean "networks"?`},
		{"unknown key in work", "name: x\ngroups:\n  - work: [{knd: tcp}]\n", `f.yaml:3:13: unknown key "knd"`, `did you mean "kind"?`},
		{"unknown key after an anchor", "name: x\ngroups:\n  - work: &w [{knd: tcp}]\n", `f.yaml:3:16: unknown key "knd"`, `did you mean "kind"?`},
		{"unknown network", "name: x\ngroups:\n  - networks: [vteh]\n    work: [{kind: tcp, duration: 1s}]\n", `f.yaml:3:16: unknown network "vteh"`, `did you mean "veth"?`},
		{"unknown work", "name: x\ngroups:\n  - networks: [veth]\n    work: [{kind: ftp, duration: 1s}]\n", `f.yaml:4:19: unknown kind of work "ftp"`, "known: attach, burst, crr, event, loaded, memory, packets, rr, setup, start, tcp, udp, udprr"},
		{"unknown topology", group("topologies: [local, swiched]"), `f.yaml:5:25: unknown topology "swiched"`, `did you mean "switched"?`},
		{"unknown engine", group("engine: [ipref3]"), `f.yaml:5:14: unknown engine "ipref3"`, `did you mean "iperf3"?`},
		{"unknown placement", group("placement: [elsewhere]"), `f.yaml:5:17: unknown placement "elsewhere"`, "known: different-cores, free, same-core"},
		{"unknown direction", group("directions: [inbond]"), `f.yaml:5:18: unknown direction "inbond"`, `did you mean "inbound"?`},
		{"unknown transport", group("transports: [sctp]"), `f.yaml:5:18: unknown transport "sctp"`, "known: mptcp, tcp"},
		{"unknown factor", group("factors: {ofered: [1G]}"), `f.yaml:5:23: unknown factor "ofered"`, `did you mean "offered"?`},
		{"factor without levels", group("factors: {gso: []}"), `f.yaml:5:20: factor "gso" has no levels`, ""},
		{"bad level", group(`factors: {gso: ["maybe"]}`), `f.yaml:5:21: unknown level "maybe"`, "known: off, on"},
		{"bad rate", group("factors: {offered: [1G, fast]}"), `f.yaml:5:29: offered rate "fast": want a number in bit/s such as 10G, "unlimited" or "search"`, ""},
		{"bad port", group("factors: {vxlan_port: [70000]}"), `f.yaml:5:28: port "70000": want 1…65535, e.g. 4789 (IANA) or 8472 (Linux before that)`, ""},
		{"bad mtu", group("mtu: [1500, 100]"), `f.yaml:5:17: mtu 100: want 576…65535 bytes, or 0 for the kernel's default`, ""},
		{"too many pairs", group("pairs: [129]"), `f.yaml:5:13: pairs 129: want 1…128`, ""},
		{"no streams", group("streams: [0]"), `f.yaml:5:15: streams 0: want 1…1024`, ""},
		{"empty congestion", group(`congestion: [""]`), `f.yaml:5:18: a congestion control needs a name, e.g. cubic`, ""},
		{"datagram too large", strings.Replace(group(), "1s}", "1s, message_bytes: [65508]}", 1), `f.yaml:4:54: message_bytes 65508 of udp: want 32…65507`, ""},
		{"duration without unit", strings.Replace(group(), "1s", "1", 1), `f.yaml:4:34: duration "1": want a number and a unit, e.g. 500ms, 2s, 1m`, ""},
		{"too short", strings.Replace(group(), "1s", "1us", 1), `f.yaml:4:34: duration 1µs of udp: want 10ms…24h0m0s`, ""},
		{"duration with a wrong unit", strings.Replace(group(), "1s", "1x", 1), `f.yaml:4:34: duration "1x": want a number and a unit, e.g. 500ms, 2s, 1m`, ""},
		{"no duration", strings.Replace(group(), ", duration: 1s", "", 1), `f.yaml:4:12: duration 0s of udp: want 10ms…24h0m0s`, ""},
		{"setup with a duration", strings.Replace(group(), "udp", "setup", 1), `f.yaml:4:36: setup has no duration: it ends by itself`, ""},
		{"repeat of 0", "name: x\nrepeat: 0\n", `f.yaml:2:9: repeat 0: want 1…10000 blocks`, ""},
		{"repeat is a word", "name: x\nrepeat: many\n", `f.yaml:2:9: repeat: want a whole number`, ""},
		{"repeat is a fraction", "name: x\nrepeat: 1.5\n", `f.yaml:2:9: repeat: want a whole number`, ""},
		{"repeat is a list", "name: x\nrepeat: [1]\n", `f.yaml:2:9: repeat: want a whole number`, ""},
		{"repeat is huge", "name: x\nrepeat: 99999999999999999999\n", `f.yaml:2:9: repeat: want a whole number`, ""},
		{"seed below 0", "name: x\nseed: -1\n", `f.yaml:2:7: seed: want a whole number, 0 or more`, ""},
		{"name is a list", "name: [x]\n", `f.yaml:1:7: name: want text`, ""},
		{"pairs are words", group("pairs: [two]"), `f.yaml:5:13: pairs: want a whole number`, ""},
		{"pairs is a number", group("pairs: 2"), `f.yaml:5:12: pairs: want a list, e.g. [2]`, ""},
		{"groups is a word", "name: x\ngroups: many\n", `f.yaml:2:9: groups: want a list, e.g. [{networks: …}]`, ""},
		{"work is a word", "name: x\ngroups:\n  - networks: [veth]\n    work: tcp\n", `f.yaml:4:11: work: want a list, e.g. [{kind: …}]`, ""},
		{"a group is a word", "name: x\ngroups: [veth]\n", `f.yaml:2:10: groups: want keys with values`, ""},
		{"duration is a list", strings.Replace(group(), "1s", "[1s]", 1), `f.yaml:4:34: duration: want a number and a unit, e.g. 500ms, 2s, 1m`, ""},
		{"an alias of the wrong kind", "name: &n x\nrepeat: *n\n", `f.yaml:2:9: repeat: want a whole number`, ""},
		{"factors is a list", group("factors: [gso]"), `f.yaml:5:14: factors: want keys with values`, ""},
		{"negative warmup", "name: x\nwarmup: -1\n", `f.yaml:2:9: warmup -1: want 0…10000 blocks`, ""},
		{"no name", "repeat: 3\n", `f.yaml: the experiment has no name`, ""},
		{"no groups", "name: x\n", `f.yaml: nothing to measure: the experiment has no groups, or none with these networks and this work`, ""},
		{"no networks", "name: x\ngroups:\n  - work: [{kind: tcp, duration: 1s}]\n", `f.yaml:3:5: the group names no networks`, ""},
		{"no work", "name: x\ngroups:\n  - networks: [veth]\n", `f.yaml:3:5: the group has no work`, ""},
		{"link rate without links", group() + "link_rate: 1G\n", `f.yaml:6:12: link rate 1G applies to nothing: no network here is measured over a switch or links`, ""},
		{"bad link rate", group() + "link_rate: fast\n", `f.yaml:6:12: link rate "fast": want a number above 0 in bit/s, with an optional k, M, G or T`, ""},
		{"unlimited link rate", group() + "link_rate: unlimited\n", `f.yaml:6:12: link rate "unlimited": want a number in bit/s`, ""},
		{"network without a possible job", group("topologies: [switched]"), `f.yaml:3:16: network "veth" can't be measured in this experiment: topology switched does not apply: it exists within one node`, ""},
		{"key twice", "name: x\nname: y\n", `f.yaml:2:1: duplicate key "name": it is already on line 1`, ""},
		{"broken YAML", "name: [", `f.yaml:1:7: sequence end token ']' not found`, ""},
		{"not a mapping", "3", `f.yaml:1:1: want keys with values`, ""},
		{"what no file has", "name: x\n\"-\": [a and b]\n", `f.yaml:2:1: unknown key "-"`, "known: description, groups, link_rate, name, only, repeat, seed, subject, title, warmup"},
		{"empty", "", `f.yaml:1:1: want one YAML document with the keys name, title, description, repeat, warmup, seed, link_rate, subject, groups, only`, ""},
		{"two documents", "name: x\n---\nname: y\n", `f.yaml:2:1: want one YAML document with the keys name, title, description, repeat, warmup, seed, link_rate, subject, groups, only`, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse("f.yaml", []byte(tt.text))
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("got %v, want an *Error", err)
			}
			if e.Error() != tt.want {
				t.Errorf("got  %s\nwant %s", e, tt.want)
			}
			if e.Hint() != tt.hint {
				t.Errorf("hint %s\nwant %s", e.Hint(), tt.hint)
			}
		})
	}
}

func TestEveryFieldHasAKey(t *testing.T) {
	text := `
name: all
title: t
description: d
repeat: 3
warmup: 2
seed: 7
link_rate: 1G
groups:
  - networks: [bridge]
    topologies: [switched]
    transports: [mptcp]
    directions: [inbound]
    mtu: [1280]
    pairs: [2]
    streams: [3]
    placement: [free]
    congestion: [reno]
    engine: [cleat]
    work: [{kind: tcp, duration: 1s, message_bytes: [99]}]
    factors: {checksum: [off]}
`
	e, err := Parse("all.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	jobs := e.Jobs()
	if len(jobs) != 1 || e.Repeat != 3 || e.Warmup != 2 || e.Seed != 7 {
		t.Fatalf("got %d jobs of %+v", len(jobs), e)
	}
	c := jobs[0].Cell
	want := "bridge|native|switched|mptcp|between|1280|2|3|1|99|reno|free|cleat|checksum=off|link_rate=1G"
	if c.Key() != want || !slices.Equal(jobs[0].Work.MessageBytes, []int{99}) {
		t.Errorf("got  %s\nwant %s", c.Key(), want)
	}
}
