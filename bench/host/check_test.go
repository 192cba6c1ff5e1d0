package host

import (
	"bytes"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// nic, port and bridge return links as a healthy machine has them.
func nic(change func(*Interface)) Interface {
	i := Interface{Name: "eth0", Index: 2, Kind: "device", Driver: "virtio_net", MTU: 1500, Up: true, Addresses: 1, DefaultRoute: true, Qdisc: "fq_codel",
		Offloads: map[string]bool{"tx-checksum-ip-generic": true, "tx-scatter-gather": true, "tx-tcp-segmentation": true, "tx-generic-segmentation": true, "rx-gro": true, "tx-udp_tnl-segmentation": true}}
	if change != nil {
		change(&i)
	}
	return i
}

func port(name string, mtu int) Interface {
	return Interface{Name: name, Kind: "veth", MTU: mtu, Up: true, Master: "br0", MasterKind: "bridge"}
}

func bridge(mtu int) Interface {
	return Interface{Name: "br0", Kind: "bridge", MTU: mtu, Up: true, Addresses: 1}
}

func links(l ...Interface) func(*Host) { return func(h *Host) { h.Interfaces = l } }

// TestChecks has rows for what each check must find, and for what it must not. files
// replace files of testdata/laptop. set changes facts that come from elsewhere.
func TestChecks(t *testing.T) {
	const cc, rpAll = "proc/sys/net/ipv4/tcp_congestion_control", "proc/sys/net/ipv4/conf/all/rp_filter"
	const nfIP, nfARP = "proc/sys/net/bridge/bridge-nf-call-iptables", "proc/sys/net/bridge/bridge-nf-call-arptables"
	const ctMax, ctCount = "proc/sys/net/netfilter/nf_conntrack_max", "proc/sys/net/netfilter/nf_conntrack_count"
	const clock = "sys/devices/system/clocksource/clocksource0/current_clocksource"
	const clone, maxUser = "proc/sys/kernel/unprivileged_userns_clone", "proc/sys/user/max_user_namespaces"
	for _, tt := range []struct {
		name, id string
		files    map[string]string
		set      func(*Host)
		want     Severity // "" if the check finds nothing
		fix      string   // part of it
		title    string   // part of it
	}{
		{name: "powersave", id: "governor", want: Warning, fix: "echo performance", title: "powersave"},
		{name: "performance", id: "governor", set: func(h *Host) { h.CPU.Governors = []string{"performance"} }, want: OK},
		{name: "mixed", id: "governor", set: func(h *Host) { h.CPU.Governors = []string{"performance", "schedutil"} }, want: Warning},
		{name: "no frequency scaling", id: "governor", set: func(h *Host) { h.CPU.Governors = nil }},

		{name: "one", id: "cpus", set: func(h *Host) { h.CPU.Online = 1 }, want: Warning},
		{name: "pinned to two", id: "cpus", set: func(h *Host) { h.CPU.Allowed = 2 }, want: Note, title: "2 CPUs"},
		{name: "four", id: "cpus", want: OK},

		{name: "limited", id: "quota", want: Warning, fix: "systemd-run", title: "1.5 of 4"},
		{name: "more than there are", id: "quota", set: func(h *Host) { h.CPU.Quota = 8 }},

		{name: "shared cores", id: "smt", want: Note, fix: "smt/control"},
		{name: "own cores", id: "smt", set: func(h *Host) { h.CPU.SMT = false }, want: OK},

		{name: "quiet", id: "load", set: func(h *Host) { h.Load = Load{Over: 0.4, Foreign: 0.05} }, want: OK},
		{name: "some", id: "load", set: func(h *Host) { h.Load = Load{Over: 0.4, Foreign: 0.5} }, want: Warning, fix: "top"},
		{name: "a busy machine", id: "load", set: func(h *Host) { h.Load = Load{Over: 0.4, Foreign: 1.5} }, want: Problem},
		{name: "not watched", id: "load"},

		{name: "stolen", id: "steal", set: func(h *Host) { h.Load = Load{Over: 0.4, Steal: 0.3} }, want: Warning, title: "0.30 CPUs"},
		{name: "virtual and quiet", id: "steal", set: func(h *Host) { h.Load.Over, h.Virtualization.Hypervisor = 0.4, true }, want: Note},
		{name: "hardware", id: "steal", set: func(h *Host) { h.Load.Over = 0.4 }},

		{name: "tsc", id: "clocksource", want: OK},
		{name: "hpet where tsc is", id: "clocksource", files: map[string]string{clock: "hpet"}, want: Warning, fix: "echo tsc"},
		{name: "hypervisor's", id: "clocksource", files: map[string]string{clock: "kvm-clock"}, set: func(h *Host) { h.Virtualization.Hypervisor = true }, want: Note},

		{name: "sampled", id: "accounting", want: Note},
		{name: "exact", id: "accounting", set: func(h *Host) { h.Kernel.Accounting = AccountIRQTime }},

		{name: "runs", id: "irqbalance", files: map[string]string{"run/irqbalance/x": ""}, want: Note, fix: "systemctl stop irqbalance"},
		{name: "does not run", id: "irqbalance"},

		{name: "off", id: "bridge-netfilter", files: map[string]string{nfIP: "0", nfARP: "0"}, want: OK},
		{name: "not loaded", id: "bridge-netfilter", want: OK},
		{name: "on, no bridge", id: "bridge-netfilter", files: map[string]string{nfIP: "1", nfARP: "1"}, want: Note},
		{name: "on for ARP only", id: "bridge-netfilter", files: map[string]string{nfIP: "0", nfARP: "1"}, set: links(bridge(1500)), want: Warning, fix: "sudo sysctl net.bridge.bridge-nf-call-arptables=0"},

		{name: "bbr", id: "congestion", files: map[string]string{cc: "bbr"}, want: Warning, fix: "=cubic"},
		{name: "cubic", id: "congestion", want: OK},
		{name: "unknown", id: "congestion", set: func(h *Host) { h.Sysctls = nil }},

		{name: "full", id: "conntrack", files: map[string]string{ctMax: "1000", ctCount: "950"}, want: Problem, fix: "=2000"},
		{name: "filling", id: "conntrack", files: map[string]string{ctMax: "1000", ctCount: "750"}, want: Warning},
		{name: "room", id: "conntrack", files: map[string]string{ctMax: "1000", ctCount: "10"}, want: OK},
		{name: "not loaded", id: "conntrack"},

		{name: "strict, two uplinks", id: "rp-filter", files: map[string]string{rpAll: "1"},
			set: links(nic(nil), nic(func(i *Interface) { i.Name = "eth1.5" })), want: Warning, fix: "net.ipv4.conf.eth1/5.rp_filter=2"},
		{name: "strict on one interface", id: "rp-filter", files: map[string]string{rpAll: "0"},
			set: links(nic(func(i *Interface) { i.RPFilter = "1" }), bridge(1500)), want: Note, title: "on eth0"},
		{name: "loose wins over strict", id: "rp-filter", files: map[string]string{rpAll: "2"},
			set: links(nic(func(i *Interface) { i.RPFilter = "1" }), bridge(1500)), want: OK},
		{name: "strict, one way", id: "rp-filter", files: map[string]string{rpAll: "1"}, set: links(nic(nil)), want: OK},

		{name: "both", id: "firewalls", set: func(h *Host) {
			h.Netfilter = Netfilter{Legacy: map[string]int{"ip filter": 3}, NFT: map[string]int{"inet main": 2}}
		}, want: Warning, fix: "nft list ruleset"},
		{name: "legacy of unknown size", id: "firewalls", set: func(h *Host) {
			h.Netfilter = Netfilter{Legacy: map[string]int{"ip filter": -1}, NFT: map[string]int{"inet main": 2}}
		}, want: Warning},
		{name: "an empty legacy table", id: "firewalls", set: func(h *Host) {
			h.Netfilter = Netfilter{Legacy: map[string]int{"ip filter": 0}, NFT: map[string]int{"inet main": 2}}
		}, want: OK},
		{name: "none", id: "firewalls", want: OK},
		{name: "not readable", id: "firewalls", set: func(h *Host) { h.Unreadable = []string{"nftables rules (needs root)"} }},

		{name: "off behind a bridge", id: "forwarding", files: map[string]string{"proc/sys/net/ipv4/ip_forward": "0"}, set: links(bridge(1500)), want: Warning, fix: "ip_forward=1"},
		{name: "on", id: "forwarding", files: map[string]string{"proc/sys/net/ipv4/ip_forward": "1"}, set: links(bridge(1500)), want: OK},
		{name: "no bridge", id: "forwarding", files: map[string]string{"proc/sys/net/ipv4/ip_forward": "0"}},

		{name: "one long queue", id: "default-qdisc", files: map[string]string{"proc/sys/net/core/default_qdisc": "pfifo_fast"}, want: Note, fix: "fq_codel"},
		{name: "fair queues", id: "default-qdisc", files: map[string]string{"proc/sys/net/core/default_qdisc": "fq_codel"}, want: OK},

		{name: "small", id: "udp-buffers", files: map[string]string{"proc/sys/net/core/rmem_max": "212992"}, want: Note, title: "208 KiB", fix: "rmem_max=4194304"},
		{name: "large", id: "udp-buffers", files: map[string]string{"proc/sys/net/core/rmem_max": "8388608"}, want: OK},

		{name: "6.1", id: "kernel", want: Note, title: "6.1"},
		{name: "new", id: "kernel", set: func(h *Host) { h.Kernel.Release = "7.2.1" }, want: OK},

		{name: "a port too small", id: "mtu", set: links(bridge(1500), port("v1", 9000), port("v2", 1500)), want: Problem, fix: "dev v2 mtu 9000"},
		{name: "all alike", id: "mtu", set: links(bridge(1500), port("v1", 1500), nic(nil)), want: OK},
		{name: "uplink too small", id: "mtu", set: links(bridge(1500), nic(func(i *Interface) { i.MTU = 1400 })), want: Warning, fix: "dev br0 mtu 1400"},
		{name: "vxlan too large", id: "mtu", set: links(nic(nil), Interface{Name: "vx", Kind: "vxlan", MTU: 1500, Parent: "eth0"}), want: Warning, fix: "dev vx mtu 1450"},
		{name: "vxlan that fits", id: "mtu", set: links(nic(nil), Interface{Name: "vx", Kind: "vxlan", MTU: 1450, Parent: "eth0"})},

		{name: "tso and gro off", id: "offloads", set: links(nic(func(i *Interface) { i.Offloads["tx-tcp-segmentation"], i.Offloads["rx-gro"] = false, false })), want: Warning, fix: "ethtool -K eth0 tso on gro on"},
		{name: "off for good", id: "offloads", set: links(nic(func(i *Interface) {
			i.Offloads["tx-tcp-segmentation"], i.Fixed = false, []string{"tx-tcp-segmentation"}
		})), want: OK},
		{name: "veth has no GRO by default", id: "offloads", set: links(Interface{Name: "v1", Kind: "veth", Up: true, Offloads: map[string]bool{"rx-gro": false, "tx-tcp-segmentation": true}}), want: OK},
		{name: "tso off on a veth", id: "offloads", set: links(Interface{Name: "v1", Kind: "veth", Up: true, Offloads: map[string]bool{"tx-tcp-segmentation": false}}), want: Warning, fix: "ethtool -K v1 tso on"},
		{name: "all on", id: "offloads", set: links(nic(nil)), want: OK},
		{name: "off on a link that is down", id: "offloads", set: links(nic(func(i *Interface) { i.Up, i.Offloads["rx-gro"] = false, false }))},

		{name: "macvlans", id: "promiscuous", set: links(nic(func(i *Interface) { i.Promiscuity = 1 }), Interface{Name: "m1", Kind: "macvlan", Parent: "eth0"}), want: Warning, title: "eth0"},
		{name: "a bridge's port", id: "promiscuous", set: links(nic(func(i *Interface) { i.Promiscuity, i.Master, i.MasterKind = 1, "br0", "bridge" })), want: OK},
		{name: "not", id: "promiscuous", set: links(nic(nil)), want: OK},

		{name: "token bucket", id: "shaping", set: links(nic(func(i *Interface) { i.Qdisc = "tbf" })), want: Warning, fix: "tc -s qdisc show dev eth0"},
		{name: "free", id: "shaping", set: links(nic(nil))},

		{name: "one in a hundred", id: "drops", set: links(nic(func(i *Interface) { i.Counters = Counters{RxPackets: 9900, RxDropped: 100} })), want: Note, title: "100 packets receiving"},
		{name: "a handful", id: "drops", set: links(nic(func(i *Interface) { i.Counters = Counters{RxPackets: 9, RxDropped: 9} }))},
		{name: "one in a million", id: "drops", set: links(nic(func(i *Interface) { i.Counters = Counters{TxPackets: 1e8, TxErrors: 100} }))},

		{name: "no tunnel segmentation", id: "vxlan", want: Note, title: "can't segment",
			set: links(nic(func(i *Interface) { delete(i.Offloads, "tx-udp_tnl-segmentation") }), Interface{Name: "vx", Kind: "vxlan", Parent: "eth0", VXLAN: &VXLAN{UDPChecksum: true}})},
		{name: "checksums below", id: "vxlan", want: Note, fix: "ethtool -K vx",
			set: links(nic(nil), Interface{Name: "vx", Kind: "vxlan", Parent: "eth0", VXLAN: &VXLAN{UDPChecksum: true}, Offloads: map[string]bool{"tx-checksum-ip-generic": true}})},
		{name: "no outer checksum", id: "vxlan", want: Note, title: "without outer", set: links(nic(nil), Interface{Name: "vx", Kind: "vxlan", Parent: "eth0", VXLAN: &VXLAN{}})},
		{name: "fine", id: "vxlan", set: links(nic(nil), Interface{Name: "vx", Kind: "vxlan", Parent: "eth0", VXLAN: &VXLAN{UDPChecksum: true}})},

		{name: "on", id: "packet-steering", set: links(nic(func(i *Interface) { i.RPS = true })), want: Note, title: "eth0"},
		{name: "off", id: "packet-steering", set: links(nic(nil))},

		{name: "allowed", id: "userns", want: OK},
		{name: "Debian's switch", id: "userns", files: map[string]string{clone: "0"}, want: Warning, fix: "unprivileged_userns_clone=1"},
		{name: "Debian's switch, not root", id: "userns", files: map[string]string{clone: "0"}, set: func(h *Host) { h.UID = 1000 }, want: Problem},
		{name: "none allowed", id: "userns", files: map[string]string{maxUser: "0"}, want: Warning, fix: "max_user_namespaces=63000"},
		{name: "no nets allowed", id: "userns", files: map[string]string{"proc/sys/user/max_net_namespaces": "0"}, want: Warning, fix: "max_net_namespaces=63000"},
		{name: "AppArmor", id: "userns", files: map[string]string{"proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1"}, want: Warning, title: "AppArmor"},
		{name: "seccomp", id: "userns", set: func(h *Host) { h.UID, h.UserNamespaces.Seccomp, h.UserNamespaces.Refused = 1, true, "EPERM" }, want: Problem, title: "seccomp"},
		{name: "something else", id: "userns", set: func(h *Host) { h.UID, h.UserNamespaces.Refused = 1, "no space left on device" }, want: Problem, title: "no space left"},
		{name: "not built", id: "userns", set: func(h *Host) { h.UserNamespaces.Supported = false }, want: Warning, title: "CONFIG_USER_NS"},

		{name: "usable", id: "tun", set: func(h *Host) { h.TUN = TUN{Present: true, Usable: true} }, want: OK},
		{name: "for root only", id: "tun", set: func(h *Host) { h.TUN = TUN{Present: true, Mode: "-rw-------"} }, want: Warning, fix: "chmod 0666 /dev/net/tun"},
		{name: "missing", id: "tun", want: Warning, fix: "modprobe tun"},

		{name: "nobody", id: "ping", files: map[string]string{"proc/sys/net/ipv4/ping_group_range": "1\t0"}, want: Note, fix: "'0 2147483647'"},
		{name: "everybody", id: "ping", files: map[string]string{"proc/sys/net/ipv4/ping_group_range": "0\t2147483647"}},
	} {
		t.Run(tt.id+"/"+tt.name, func(t *testing.T) {
			h := fromFiles(newFiles(laptopWith(t, tt.files)))
			if tt.set != nil {
				tt.set(&h)
			}
			got := slices.DeleteFunc(Diagnose(h), func(f Finding) bool { return f.ID != tt.id })
			switch {
			case len(got) == 0 && tt.want == "":
				return
			case len(got) != 1 || got[0].Severity != tt.want:
				t.Fatalf("got %+v, want one %q", got, tt.want)
			}
			f := got[0]
			if !strings.Contains(f.Fix, tt.fix) || tt.fix != "" && f.Fix == "" {
				t.Errorf("fix %q lacks %q", f.Fix, tt.fix)
			}
			if !strings.Contains(f.Title, tt.title) {
				t.Errorf("title %q lacks %q", f.Title, tt.title)
			}
			if f.Severity != OK && (f.Detail == "" || f.Spoils == "") {
				t.Errorf("%+v lacks a detail or what it spoils", f)
			}
		})
	}
}

// laptopWith returns testdata/laptop with some files replaced.
func laptopWith(t *testing.T, over map[string]string) fstest.MapFS {
	t.Helper()
	fsys := fstest.MapFS{}
	dir := os.DirFS("testdata/laptop")
	err := fs.WalkDir(dir, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(dir, name)
		fsys[name] = &fstest.MapFile{Data: b}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range over {
		fsys[name] = file(text + "\n")
	}
	return fsys
}

func TestDiagnoseSortsWorstFirst(t *testing.T) {
	h := fromFiles(newFiles(laptopWith(t, nil)))
	h.Interfaces = []Interface{bridge(1500), port("v1", 9000), port("v2", 1500)}
	all := Diagnose(h)
	if !slices.IsSortedFunc(all, func(a, b Finding) int { return a.Severity.rank() - b.Severity.rank() }) {
		t.Errorf("not sorted: %+v", all)
	}
	if all[0].Severity != Problem {
		t.Errorf("the first finding is %+v, want the problem", all[0])
	}
}

func TestTextFits(t *testing.T) {
	h := fromFiles(newFiles(laptopWith(t, nil)))
	h.Interfaces = []Interface{nic(func(i *Interface) { i.SpeedMbit = 10000 }), bridge(1500), port("v1", 9000), port("v2", 1500)}
	var b bytes.Buffer
	if err := h.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	if err := WriteFindings(&b, Diagnose(h), []string{"/sys/kernel/debug/sched/preempt"}); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(b.String()) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > 80 && !strings.Contains(line, "$ ") {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	for _, want := range []string{"nominal 10 Gbit/s", "problem  bridge br0 mixes MTUs", "unread   /sys/kernel"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, b.String())
		}
	}
}
