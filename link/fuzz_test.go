package link

import (
	"encoding/json"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// noNames is a namespace without links.
type noNames struct{}

func (noNames) index(string) (int, error) { return 0, unix.ENODEV }
func (noNames) name(int) (string, error)  { return "", unix.ENODEV }

// FuzzAttributes parses link messages. Drivers choose parts of their contents.
func FuzzAttributes(f *testing.F) {
	f.Add(append(make([]byte, unix.SizeofIfInfomsg), 9, 0, 3, 0, 'e', 't', 'h', '0', 0, 0, 0, 0, 12, 0, 18, 0, 8, 0, 1, 0, 't', 'u', 'n', 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= unix.SizeofIfInfomsg {
			_, _ = parseLinkInfo(b)
		}
		got, err := attributeMap(b)
		if err != nil {
			return
		}
		for _, k := range kinds() {
			_ = decodeFields(k.defaults(), got, noNames{})
		}
	})
}

// FuzzOVSRow parses rows of Open vSwitch's tables.
func FuzzOVSRow(f *testing.F) {
	f.Add(`{"headings":["name","trunks","options"],"data":[["br0",["set",[1,2]],["map",[["a","b"]]]]]}`)
	f.Add(`{"headings":["trunks"],"data":[[["set",[null,{"a":1}]]]]}`)
	f.Fuzz(func(t *testing.T, text string) {
		row, err := decodeOVSRow(json.NewDecoder(strings.NewReader(text)))
		if err != nil {
			return
		}
		for column := range row {
			_, _ = row.string(column), row.int(column)
		}
	})
}

// FuzzParse parses specs. Parsing the parameters of a parsed spec must give the same
// spec.
func FuzzParse(f *testing.F) {
	f.Add("vxlan", "id", "7", "remote", "192.0.2.1")
	f.Add("wireguard", "peer", "x", "private-key", "")
	f.Add("vlan", "id", "4095", "name", "a/b")
	f.Fuzz(func(t *testing.T, kind, a, av, b, bv string) {
		spec, err := Parse(kind, map[string]string{a: av, b: bv})
		if err != nil || kind == "wireguard" { // Params hides its keys
			return
		}
		params := Params(spec)
		again, err := Parse(kind, params)
		if err != nil {
			t.Fatalf("parse %q again: %v", params, err)
		}
		for k, v := range Params(again) {
			if params[k] != v {
				t.Errorf("%s is %q, and %q after parsing it again", k, params[k], v)
			}
		}
	})
}
