package wiring

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cleat/bench/catalog"
	"cleat/bench/multipath"

	"github.com/goccy/go-yaml"
)

// TestEveryNetworkHasABuilder compares the builders with the catalogue.
func TestEveryNetworkHasABuilder(t *testing.T) {
	for _, e := range catalog.All() {
		if builders[e.Name] == nil && e.Role != catalog.Attacher {
			t.Errorf("%s has no builder", e.Name)
		}
	}
	for name := range builders {
		if _, ok := catalog.Lookup(name); !ok {
			t.Errorf("%s is not in the catalogue", name)
		}
	}
}

// fourLinks has the four rates of the variant "rates".
func fourLinks(ipv6 bool) linkedHosts {
	return linkedHosts{spec: multipath.Spec{Links: 4, Variant: multipath.Rates, RateBitsPerSec: 100e6}, ipv6: ipv6}
}

// TestTunnelFile parses the file as YAML.
func TestTunnelFile(t *testing.T) {
	keys := map[int]tunnelKey{1: {"/k1", "cHVibGljMQ=="}, 2: {"/k2", "cHVibGljMg=="}}
	for _, tt := range []struct {
		name          string
		side          int
		ipv6          bool
		keys          map[int]tunnelKey
		inner         string
		local, remote string // of the last path
		private, peer string
	}{
		{"left", 1, false, nil, "198.18.250.1/30", "198.18.103.1", "198.18.103.2", "", ""},
		{"right, encrypted, IPv6", 2, true, keys, "198.18.250.2/30", "2001:2:0:4::2", "2001:2:0:4::1", "/k2", "cHVibGljMQ=="},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got struct {
				Name, Device, Scheduler, Datapath string
				Address                           []string
				Key                               struct{ Private, Peer string }
				Paths                             []struct{ Name, Device, Local, Remote string }
			}
			text := tunnelFile(fourLinks(tt.ipv6), tt.side, "bench", "flow", "user", tt.keys)
			if err := yaml.UnmarshalWithOptions([]byte(text), &got, yaml.DisallowUnknownField()); err != nil {
				t.Fatalf("%v in\n%s", err, text)
			}
			if got.Name != "bench" || got.Device != "mp0" || got.Scheduler != "flow" || got.Datapath != "user" || len(got.Address) != 1 || got.Address[0] != tt.inner || len(got.Paths) != 4 {
				t.Fatalf("%+v", got)
			}
			last := got.Paths[3]
			if last.Name != "l4" || last.Device != "l4" || last.Local != tt.local || last.Remote != tt.remote {
				t.Errorf("last path %+v", last)
			}
			if got.Key.Private != tt.private || got.Key.Peer != tt.peer {
				t.Errorf("key %+v", got.Key)
			}
		})
	}
	if text := tunnelFile(fourLinks(false), 1, "bench", "", "", nil); !strings.Contains(text, "scheduler: adaptive\ndatapath: auto\n") {
		t.Errorf("the default scheduler is not adaptive, or the datapath not auto:\n%s", text)
	}
}

func TestRivalFiles(t *testing.T) {
	p := fourLinks(false)
	for _, tt := range []struct {
		name, text string
		want, not  []string
	}{
		{"mpt, defaults", mptConnection(p, 1, false), []string{"path_count = 4", "ip_local = 198.18.250.1", "private_ipaddr = 198.18.103.1", "public_ipaddr = 198.18.103.1", "remote_ipaddr = 198.18.103.2", "keepalive_time = 5"}, []string{"weight_out = 50"}},
		{"mpt, best", mptConnection(p, 1, true), []string{"weight_out = 50\n", "weight_out = 25\n", "weight_out = 10\n", "dead_time = 2\n"}, []string{"keepalive_time = 5"}},
		{"mpt, interface", mptInterface(2), []string{"name = mp0\n", "ipv4_addr = 198.18.250.2/30", "ipv6_addr = ::/0"}, nil},
		{"mlvpn, defaults", mlvpnFile(p, 1, "/s", false), []string{`mode = "client"`, `bindhost = "198.18.100.1"`, `remotehost = "198.18.103.2"`, "remoteport = 5083"}, []string{"bandwidth_upload", "reorder_buffer_size"}},
		{"mlvpn, best", mlvpnFile(p, 2, "/s", true), []string{`mode = "server"`, "bandwidth_upload = 12500000\n", "bandwidth_upload = 2500000\n", "reorder_buffer_size = 256"}, []string{"remotehost"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, w := range tt.want {
				if !strings.Contains(tt.text, w) {
					t.Errorf("%q is missing in\n%s", w, tt.text)
				}
			}
			for _, w := range tt.not {
				if strings.Contains(tt.text, w) {
					t.Errorf("%q is in\n%s", w, tt.text)
				}
			}
		})
	}
	paths := glorytunPaths(p, true)
	if got := strings.Join(paths[3], " "); len(paths) != 4 || got != "glorytun path 198.18.103.1 dev mp0 up rate fixed tx 2430647 rx 2430647" {
		t.Errorf("%d paths, the last %q", len(paths), got)
	}
	if got := strings.Join(glorytunPaths(p, false)[0], " "); got != "glorytun path 198.18.100.1 dev mp0 up rate auto tx 125000000 rx 125000000" {
		t.Errorf("by default %q", got)
	}
}

// TestMLVPNStatus runs the script as mlvpn does, on both sides.
func TestMLVPNStatus(t *testing.T) {
	dir := t.TempDir()
	var scripts []string
	for _, side := range []string{"1.sh", "2.sh"} {
		scripts = append(scripts, filepath.Join(dir, side))
		if err := writeFile(filepath.Join(dir, side), mlvpnStatus, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for i, step := range []struct {
		side int
		args []string
		up   bool
	}{
		{0, []string{"mp0", "rtun_up", "l1"}, false},
		{0, []string{"mp0", "rtun_down", "l2"}, false},
		{0, []string{"mp0", "rtun_up", "l2"}, false},
		{1, []string{"mp0", "tuntap_up"}, false},
		{1, []string{"mp0", "rtun_up", "l1"}, false},
		{1, []string{"mp0", "rtun_up", "l1"}, false},
		{1, []string{"mp0", "rtun_up", "l2"}, true},
	} {
		if out, err := exec.Command(scripts[step.side], step.args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if err := mlvpnUp(scripts, 2); (err == nil) != step.up {
			t.Errorf("step %d: %v", i, err)
		}
	}
}
