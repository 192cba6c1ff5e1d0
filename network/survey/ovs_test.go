package survey

import (
	"encoding/json"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// ovsAnswer is the answer of a database with one bridge. Its ports are a device in VLAN 100, the
// internal port, another internal port that was moved to another namespace, a tunnel, a patch port
// and one that has no device.
const ovsAnswer = `{"id":0,"error":null,"result":[
{"rows":[{"name":"br0","ports":["set",[["uuid","p0"],["uuid","p1"],["uuid","p2"],["uuid","p3"],["uuid","p4"],["uuid","p5"]]]},{"name":"gone","ports":["uuid","p9"]}]},
{"rows":[
 {"_uuid":["uuid","p0"],"name":"br0","interfaces":["uuid","i0"],"tag":["set",[]],"trunks":["set",[]]},
 {"_uuid":["uuid","p1"],"name":"veth0","interfaces":["uuid","i1"],"tag":100,"trunks":["set",[]]},
 {"_uuid":["uuid","p2"],"name":"lan0","interfaces":["uuid","i2"],"tag":["set",[]],"trunks":["set",[7,8]]},
 {"_uuid":["uuid","p3"],"name":"gnv0","interfaces":["uuid","i3"],"tag":["set",[]],"trunks":["set",[]]},
 {"_uuid":["uuid","p4"],"name":"pat0","interfaces":["uuid","i4"],"tag":["set",[]],"trunks":["set",[]]},
 {"_uuid":["uuid","p5"],"name":"eth9","interfaces":["uuid","i5"],"tag":["set",[]],"trunks":["set",[]]}]},
{"rows":[
 {"_uuid":["uuid","i0"],"name":"br0","type":"internal","options":["map",[]],"mac_in_use":"02:00:00:00:00:01","error":["set",[]]},
 {"_uuid":["uuid","i1"],"name":"veth0","type":"","options":["map",[]],"mac_in_use":"02:00:00:00:00:02","error":["set",[]]},
 {"_uuid":["uuid","i2"],"name":"lan0","type":"internal","options":["map",[]],"mac_in_use":"02:00:00:00:00:03","error":["set",[]]},
 {"_uuid":["uuid","i3"],"name":"gnv0","type":"geneve","options":["map",[["key","7"],["remote_ip","198.51.100.7"]]],"mac_in_use":["set",[]],"error":["set",[]]},
 {"_uuid":["uuid","i4"],"name":"pat0","type":"patch","options":["map",[["peer","pat1"]]],"mac_in_use":["set",[]],"error":["set",[]]},
 {"_uuid":["uuid","i5"],"name":"eth9","type":"","options":["map",[]],"mac_in_use":["set",[]],"error":"could not open network device eth9 (No such device)"}]}]}`

// ovsServer answers each request with the same text.
func ovsServer(t *testing.T, answer string) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "db.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			var request struct {
				Method string
				Params []any
			}
			if json.NewDecoder(c).Decode(&request) == nil && request.Method == "transact" && len(request.Params) == 4 {
				c.Write([]byte(answer))
			}
			c.Close()
		}
	}()
	return socket
}

func ovsSurvey() *Survey {
	return &Survey{Namespaces: []Namespace{
		{ID: 1, Label: "host", Programs: []Program{{"ovs-vswitchd", 1}}, Links: []Link{
			{Index: 2, Name: "ovs-system", Kind: kindOVS}, {Index: 3, Name: "br0", Kind: kindOVS}, {Index: 4, Name: "veth0", Kind: "veth", Master: 2},
		}},
		{ID: 9, Label: "other", Links: []Link{{Index: 5, Name: "lan0", Kind: kindOVS, MAC: "02:00:00:00:00:99"}}},
		{ID: 2, Label: "web", Links: []Link{{Index: 5, Name: "lan0", Kind: kindOVS, MAC: "02:00:00:00:00:03"}}},
	}}
}

func TestSwitches(t *testing.T) {
	s := ovsSurvey()
	s.readSwitches(t.Context(), ovsServer(t, ovsAnswer))
	want := ovsSurvey()
	links := want.Namespaces[0].Links
	links[1].Detail = "bridge"
	links[1].Ports = []SwitchPort{
		{Name: "eth9", Error: "could not open network device eth9 (No such device)"},
		{Name: "gnv0", Kind: "geneve", Remote: "198.51.100.7"},
		{Name: "pat0", Kind: "patch", Peer: "pat1"},
	}
	links[2].Master, links[2].Detail = 3, "VLAN 100"
	lan := &want.Namespaces[2].Links[0]
	lan.Detail, lan.Parent = "port VLANs 7,8", &End{NamespaceID: 1, Namespace: "host", Index: 3, Name: "br0", NSID: -1}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// An error is noted if there is a switch.
func TestSwitchesUnread(t *testing.T) {
	nowhere := filepath.Join(t.TempDir(), "db.sock")
	for _, tt := range []struct {
		name, socket string
		with         bool // a switch
		note         string
	}{
		{"no switch and no database", nowhere, false, ""},
		{"no database", nowhere, true, "no such file"},
		{"no answer", ovsServer(t, ""), true, "EOF"},
		{"a refusal", ovsServer(t, `{"error":"unknown database","result":null}`), true, "unknown database"},
		{"a refused select", ovsServer(t, `{"error":null,"result":[{"rows":[]},{"error":"no such column"},{"rows":[]}]}`), true, "no such column"},
		{"nonsense", ovsServer(t, `{"error":null,"result":[{"rows":[{"ports":7}]},{"rows":[{}]},{"rows":[{"options":["map"]}]}]}`), true, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &Survey{}
			if tt.with {
				s = ovsSurvey()
			}
			s.readSwitches(t.Context(), tt.socket)
			if notes := strings.Join(s.Notes, ""); (notes == "") != (tt.note == "") || !strings.Contains(notes, tt.note) {
				t.Errorf("notes %q", s.Notes)
			}
		})
	}
}
