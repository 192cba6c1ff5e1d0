package pipework

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cleat/link"
	"cleat/network/attach"
	"cleat/network/dhcp"

	"github.com/google/go-cmp/cmp"
)

// machine has a device of each kind.
func machine() []Device {
	nic := link.MAC{0x02, 0, 0x5e, 0x10, 0, 1}
	return []Device{
		{Name: "lo", Up: true},
		{Name: "eth0", Up: true, MAC: nic},
		{Name: "eth0.10", Kind: "vlan", Up: true, Stacked: true, MAC: nic},
		{Name: "eth1", MAC: link.MAC{0x02, 0, 0x5e, 0x10, 0, 2}},
		{Name: "twin0", MAC: link.MAC{0x02, 0, 0x5e, 0x10, 0, 3}},
		{Name: "twin1", MAC: link.MAC{0x02, 0, 0x5e, 0x10, 0, 3}},
		{Name: "docker0", Kind: "bridge", Up: true},
		{Name: "switch", Kind: "openvswitch", Up: true},
		{Name: "brick", Up: true},
		{Name: "ib0", InfiniBand: true, Up: true},
		{Name: "wlan0", Up: true, Radio: "phy0"},
	}
}

// like returns the spec of "HOSTIF web 192.0.2.10/24", changed by change.
func like(kind, parent string, change func(*attach.Spec)) attach.Spec {
	w := attach.Spec{Kind: kind, Parent: parent, Name: "eth1", Addresses: []netip.Prefix{prefix("192.0.2.10/24")}}
	if change != nil {
		change(&w)
	}
	return w
}

// leased returns the spec of "HOSTIF web dhcp", changed by change.
func leased(kind, parent string, change func(*attach.Spec)) attach.Spec {
	w := like(kind, parent, change)
	w.Addresses, w.DHCP = nil, true
	return w
}

func TestPlan(t *testing.T) {
	bridgeMode := func(w *attach.Spec) { w.Mode = "bridge" }
	rows := []struct {
		name, args  string
		want        attach.Spec
		raise, note string
	}{
		{"bridge to be made", "br1 web 192.0.2.10/24", like("bridge", "br1", nil), "", ""},
		{"bridge of any name", "docker0 web 192.0.2.10/24", like("bridge", "docker0", nil), "", ""},
		{"no bridge, whatever its name", "brick web 192.0.2.10/24", like("macvlan", "brick", bridgeMode), "", ""},
		{"bridge in a VLAN", "br1 web 192.0.2.10/24 @10", like("bridge", "br1", func(w *attach.Spec) { w.VLAN = 10 }), "", ""},
		{"bridge, other end", "br1 -l h0 web 192.0.2.10/24", like("bridge", "br1", func(w *attach.Spec) { w.Peer = "h0" }), "", ""},
		{"switch to be made", "ovsbr0 web 192.0.2.10/24 @10", like("ovs", "ovsbr0", func(w *attach.Spec) { w.VLAN = 10 }), "", ""},
		{"switch of any name", "switch -l h0 web 192.0.2.10/24", like("ovs", "switch", func(w *attach.Spec) { w.Peer = "h0" }), "", ""},
		{"card", "eth0 web 192.0.2.10/24", like("macvlan", "eth0", bridgeMode), "", ""},
		{"card that is down", "eth1 web 192.0.2.10/24", like("macvlan", "eth1", bridgeMode), "eth1", ""},
		{"card in a VLAN", "eth0 web 192.0.2.10/24 @10", like("macvlan", "eth0", func(w *attach.Spec) { w.Mode, w.VLAN = "bridge", 10 }), "", ""},
		{"card by its address", "mac:02:00:5e:10:00:01 web 192.0.2.10/24", like("macvlan", "eth0", bridgeMode), "", ""},
		{"card, -l", "eth0 -l h0 web 192.0.2.10/24", like("macvlan", "eth0", bridgeMode), "", "-l h0 has no effect"},
		{"-H without DHCP", "eth0 -H h web 192.0.2.10/24", like("macvlan", "eth0", bridgeMode), "", "-H h has no effect"},
		{"ipvlan", "eth0 --ipvlan web 192.0.2.10/24", like("ipvlan", "eth0", func(w *attach.Spec) { w.Mode = "l3" }), "", ""},
		{"ipvlan on a card that is down", "eth1 --ipvlan web 192.0.2.10/24", like("ipvlan", "eth1", func(w *attach.Spec) { w.Mode = "l3" }), "eth1", ""},
		{"card itself", "--direct-phys eth1 web 192.0.2.10/24", like("phys", "eth1", nil), "", ""},
		{"VLAN itself", "--direct-phys eth1 web 192.0.2.10/24 @10", like("vlan", "eth1", func(w *attach.Spec) { w.VLAN = 10 }), "eth1", ""},
		{"bridge has no card", "--direct-phys docker0 web 192.0.2.10/24", like("bridge", "docker0", nil), "", ""},
		{"InfiniBand itself", "--direct-phys ib0 web 192.0.2.10/24", like("ipoib", "ib0", func(w *attach.Spec) { w.Name = "ib0" }), "", ""},
		{"InfiniBand, named", "--direct-phys ib0 -i eth7 web 192.0.2.10/24", like("ipoib", "ib0", func(w *attach.Spec) { w.Name = "eth7" }), "", ""},
		{"dummy", "dummy web 192.0.2.10/24", like("dummy", "", nil), "", ""},
		{"gateway", "br1 web 192.0.2.10/24@192.0.2.1", like("bridge", "br1", func(w *attach.Spec) { w.Gateways = []netip.Addr{addr("192.0.2.1")} }), "", ""},
		{"wireless", "wlan0 web 192.0.2.10/24", like("macvlan", "wlan0", bridgeMode), "", "wlan0 is wireless: access points drop"},
		{"wireless, shared", "wlan0 --ipvlan web 192.0.2.10/24", like("ipvlan", "wlan0", func(w *attach.Spec) { w.Mode = "l3" }), "", ""},
		{"DHCP, host name", "br1 -H app web dhclient", leased("bridge", "br1", func(w *attach.Spec) { w.DHCPHostName = "app" }), "", ""},
		{"DHCP, MAC and VLAN", "eth1 web dhcp 02:00:5e:10:00:09@10", leased("macvlan", "eth1", func(w *attach.Spec) {
			w.Mode, w.VLAN, w.MAC = "bridge", 10, link.MAC{2, 0, 0x5e, 0x10, 0, 9}
		}), "eth1", ""},
		{"DHCP on the card itself", "--direct-phys eth1 web udhcpc", leased("phys", "eth1", nil), "", ""},
		{"DHCP, IPv6", "br1 -a inet6 web dhcp", leased("bridge", "br1", nil), "", "-a inet6 has no effect: addresses from DHCP are IPv4"},
		{"DHCP, IPv4", "br1 -a inet web dhcp", leased("bridge", "br1", nil), "", ""},
		{"DHCP client stays", "br1 web dhcp:-f", leased("bridge", "br1", nil), "", ""},
		{"gateway elsewhere", "br1 web 192.0.2.10/24@198.51.100.1", like("bridge", "br1", func(w *attach.Spec) {
			w.Gateways = []netip.Addr{addr("198.51.100.1")}
			w.Routes = []attach.Route{{To: prefix("198.51.100.1/32")}}
		}), "", ""},
	}
	for _, client := range dhcpClients() {
		r := rows[0]
		r.name, r.args, r.want = client, "br1 web "+client, leased("bridge", "br1", nil)
		rows = append(rows, r)
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			o, err := Parse(strings.Fields(r.args))
			if err != nil {
				t.Fatal(err)
			}
			p, err := o.Plan(machine())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(r.want, p.Spec, same); diff != "" {
				t.Errorf("pipework %s (-want +got):\n%s", r.args, diff)
			}
			if p.Raise != r.raise {
				t.Errorf("pipework %s: brings %q up, want %q", r.args, p.Raise, r.raise)
			}
			if notes := strings.Join(p.Notes, "\n"); (r.note == "") != (notes == "") || !strings.Contains(notes, r.note) {
				t.Errorf("pipework %s: notes %q, want %q", r.args, notes, r.note)
			}
			if err := p.Spec.Validate(); err != nil {
				t.Errorf("pipework %s: attaching refuses it: %v", r.args, err)
			}
		})
	}
}

func TestPlanRefuses(t *testing.T) {
	const lacks, mistake = true, false
	rows := []struct {
		name, args, text, hint string
		lacking                bool
	}{
		{"no such device", "eht0 web 192.0.2.10/24", `the host has no device "eht0"`, "did you mean eth0?", mistake},
		{"phys:", "phys:eth1 web 192.0.2.10/24", "phys: is not supported", "pipework --direct-phys eth1", lacks},
		{"address of none", "mac:02:00:5e:10:00:09 web 192.0.2.10/24", "no device of the host has the address 02:00:5e:10:00:09", "ip link", mistake},
		{"address of several", "mac:02:00:5e:10:00:03 web 192.0.2.10/24", "several devices have the address", "twin0, twin1", mistake},
		{"no address", "mac:eth0 web 192.0.2.10/24", `"eth0" is not an Ethernet address`, "mac:02:", mistake},
		{"VLAN 0", "eth0 web 192.0.2.10/24 @0", "@0 is not a VLAN id", "1…4094", mistake},
		{"VLAN 4095", "eth0 web 192.0.2.10/24 @4095", "@4095 is not a VLAN id", "1…4094", mistake},
		{"VLANs", "eth0 web 192.0.2.10/24 @10@20", "@10@20 is not a VLAN id", "1…4094", mistake},
		{"child of InfiniBand", "ib0 web 192.0.2.10/24", "no child can be created here", "ip link add link ib0 name ib0.child type ipoib\npipework --direct-phys ib0.child -i ib0 web", lacks},
		{"partition of InfiniBand", "--direct-phys ib0 web 192.0.2.10/24 @8002", "no child can be created here", "ip link add link ib0 name ib0.8002 type ipoib pkey 0x8002\npipework --direct-phys ib0.8002 -i ib0 web", lacks},
		{"child of InfiniBand, named", "ib0 -i eth7 web 192.0.2.10/24", "no child can be created here", "--direct-phys ib0.child -i eth7 web", lacks},
		{"wireless device itself", "--direct-phys wlan0 web 192.0.2.10/24", "wlan0 is a wireless device", "`pipework wlan0 --ipvlan web …`, or move its radio: iw phy phy0 set netns PID", lacks},
		{"DHCP on ipvlan l3", "eth0 --ipvlan web dhcp", "dhcp: --ipvlan uses mode l3", "`cleat attach web ipvlan eth0 --dhcp`", lacks},
		{"DHCP on a dummy", "dummy web dhclient-f", "dhclient-f: a dummy has no network", "ADDRESS/LENGTH", mistake},
		{"DHCP on InfiniBand", "--direct-phys ib0 web udhcpc", "udhcpc: DHCP on InfiniBand is not supported", "0/0 and start", lacks},
		{"address of InfiniBand", "--direct-phys ib0 web 192.0.2.10/24 02:00:5e:10:00:01", "its address can't be set", "leave out MAC", mistake},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			o, err := Parse(strings.Fields(r.args))
			if err != nil {
				t.Fatal(err)
			}
			_, err = o.Plan(machine())
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("pipework %s: %v, want an *Error", r.args, err)
			}
			if !strings.Contains(e.Error(), r.text) || !strings.Contains(e.Hint(), r.hint) {
				t.Errorf("pipework %s: %q, hint %q; want %q, hint %q", r.args, e, e.Hint(), r.text, r.hint)
			}
			if e.lacking != r.lacking {
				t.Errorf("pipework %s: that the script does it: %t", r.args, e.lacking)
			}
		})
	}
}

// Errors of attaching use the script's terms; those with a hint keep it.
func TestExplain(t *testing.T) {
	o := Options{Host: "br1", Guest: "web", HostEnd: "h0", DHCP: &DHCP{Client: "udhcpc"}}
	rows := []struct {
		name string
		err  error
		hint string
	}{
		{"own", &Error{err: errors.New("text"), hint: "advice"}, "advice"},
		{"no server", fmt.Errorf("get eth1 an address: %w", &dhcp.Error{}), "check that the network of br1 has a DHCP server with free addresses; ADDRESS/LENGTH instead of udhcpc"},
		{"taken by us", &attach.TakenError{Resource: "link", Name: "eth1", Holder: &attach.Attachment{}}, "`cleat detach web eth1`"},
		{"taken", &attach.TakenError{Resource: "link", Name: "eth1", Owner: "a link of the container"}, "another name with -i"},
		{"other end taken", &attach.TakenError{Resource: "link", Name: "h0", Owner: "a link of the host"}, "another name with -l"},
		{"address", &attach.TakenError{Resource: "address", Name: "192.0.2.10"}, "`cleat ls`"},
		{"Ethernet address", &attach.TakenError{Resource: attach.EthernetAddress, Name: "02:00:5e:10:00:01"}, "another MAC"},
		{"way out", fmt.Errorf("move eth0: %w", attach.ErrDefaultRoute), "without --direct-phys"},
		{"no filter", &attach.SpecError{Param: "vlan", Run: "ip link set br1 type bridge vlan_filtering 1"}, "as root: ip link set br1"},
		{"host name", attach.Spec{Kind: "bridge", Parent: "br1", DHCP: true, DHCPHostName: "a b"}.Validate(), "another one with -H"},
		{"lack", &link.Lack{Remedy: "modprobe macvlan"}, "modprobe macvlan"},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			err := explain(r.err, o)
			var e interface{ Hint() string }
			if !errors.As(err, &e) || !strings.Contains(e.Hint(), r.hint) {
				t.Errorf("%v has no hint %q", err, r.hint)
			}
			if !errors.Is(err, r.err) {
				t.Errorf("%v hides %v", err, r.err)
			}
		})
	}
}

// Options for the DHCP client are accepted if they ask for its default behaviour, or set
// a host name.
func TestClientOptions(t *testing.T) {
	rows := []struct{ name, word, hostName, note, lack string }{
		{"none", "udhcpc", "", "", ""},
		{"stays, quietly", "udhcpc-f:-f -q -n", "", "", ""},
		{"host name of udhcpc", "udhcpc:-n -x hostname:app", "app", "", ""},
		{"host name of dhclient", "dhclient:-H app -1", "app", "", ""},
		{"dhcpcd's do nothing", "dhcpcd:-x", "", "options for dhcpcd have no effect, as in the script: -x", ""},
		{"none of dhcpcd's", "dhcpcd", "", "", ""},
		{"another", "udhcpc:-f -s /bin/script", "", "", `udhcpc: option "-s" for the DHCP client is not supported`},
		{"another of -x", "udhcpc:-x lease:60", "", "", `udhcpc: option "-x lease:60" for the DHCP client is not supported`},
		{"without its value", "dhclient:-H", "", "", `dhclient: option "-H" for the DHCP client is not supported`},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			o, err := Parse([]string{"br1", "web", r.word})
			if err != nil {
				t.Fatal(err)
			}
			p, err := o.Plan(machine())
			var e *Error
			if r.lack != "" {
				if !errors.As(err, &e) || e.Error() != r.lack || !e.lacking || !strings.Contains(e.Hint(), "-H NAME") {
					t.Errorf("%s: %v, want %s", r.word, err, r.lack)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if notes := strings.Join(p.Notes, "\n"); p.Spec.DHCPHostName != r.hostName || notes != r.note {
				t.Errorf("%s: host name %q, notes %q", r.word, p.Spec.DHCPHostName, notes)
			}
		})
	}
	o, err := Parse([]string{"br1", "-H", "first", "web", "udhcpc:-x hostname:app"})
	if err != nil {
		t.Fatal(err)
	}
	if p, err := o.Plan(machine()); err != nil || p.Spec.DHCPHostName != "first" {
		t.Errorf("-H and an option: %q, %v", p.Spec.DHCPHostName, err)
	}
}

// A wireless device has a radio.
func TestRadioOf(t *testing.T) {
	class := t.TempDir()
	for _, name := range []string{"wlan0", "eth0"} {
		if err := os.Mkdir(filepath.Join(class, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../../ieee80211/phy7", filepath.Join(class, "wlan0", "phy80211")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"wlan0": "phy7", "eth0": "", "none": ""} {
		if got := radioOf(class, name); got != want {
			t.Errorf("radio of %s: %q, want %q", name, got, want)
		}
	}
}
