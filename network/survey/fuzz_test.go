package survey

import (
	"encoding/json"
	"testing"
)

// FuzzProc parses files of /proc whose content processes choose, and names of mounts.
func FuzzProc(f *testing.F) {
	f.Add("7 (a) S 1 (b) S 3 0 0 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 700 0 0")
	f.Add("0::/docker/0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n1:x:/lxc/web")
	f.Add(`net:[4026531840]`)
	f.Add(`/run/my\040nets/\134blue`)
	f.Fuzz(func(t *testing.T, text string) {
		parseStat(1, []byte(text))
		containerOf(text)
		nsID(text)
		if len(unescape(text)) > len(text) {
			t.Errorf("%q grows", text)
		}
		if Natural(text, text) != 0 || Natural(text, text+"1") >= 0 {
			t.Errorf("Natural is not antisymmetric for %q", text)
		}
		(&Survey{Namespaces: []Namespace{{Label: text, Names: []string{text}}}}).Find(text)
	})
}

// FuzzSwitch applies answers of Open vSwitch's database to links.
func FuzzSwitch(f *testing.F) {
	f.Add(`[[{"name":"br0","ports":["set",[["uuid","p"]]]}],[{"_uuid":["uuid","p"],"name":"eth0","interfaces":["uuid","i"],"tag":7,"trunks":["set",[1,2]]}],
		[{"_uuid":["uuid","i"],"name":"eth0","type":"patch","options":["map",[["peer","x"]]],"mac_in_use":"02:00:00:00:00:01","error":"no"}]]`)
	f.Add(`[[{"name":1,"ports":["set",1]}],[{"interfaces":["map"]}],[null]]`)
	f.Fuzz(func(t *testing.T, text string) {
		var rows [3][]ovsRow
		if json.Unmarshal([]byte(text), &rows) != nil {
			return
		}
		s := &Survey{Namespaces: []Namespace{
			{ID: 1, Label: "host", Programs: []Program{{Name: "ovs-vswitchd"}}, Links: []Link{{Index: 1, Name: "br0"}, {Index: 2, Name: "eth0", Kind: "tap"}}},
			{ID: 2, Label: "web", Links: []Link{{Index: 1, Name: "eth0", MAC: "02:00:00:00:00:01"}}},
		}}
		s.joinPorts(&ovsTables{rows[0], rows[1], rows[2]})
	})
}
