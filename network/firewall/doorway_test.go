package firewall_test

import (
	"strings"
	"testing"

	"cleat/network/firewall"
)

// If the devices are gone, connections to published ports fail, and nothing leaves the host on
// the way to the router of duplicates, even if there is a route to everywhere.
func TestDoorwayIsGone(t *testing.T) {
	t.Parallel()
	w := newBed(t)
	s := w.published("tcp")
	w.sync(s)
	run(t, w.host, "", "sh", "-c", "ip route add default via 198.51.100.66; ip -6 route add default via 2001:db8:fe::2; ip link del cleat-in0")
	nft(t, w.other, `table inet assume {
		chain prerouting { type filter hook prerouting priority -300; tcp dport 8080 counter; }
	}`)
	w.reaches(w.client, "tcp", "198.51.100.1:8080", "")
	w.reaches(w.client, "tcp", "[2001:db8:ff::1]:8080", "")
	w.reaches(w.client, "tcp", "198.51.100.1:8081", "a 198.51.100.2")
	if all := counted(t, w.other, "inet"); strings.Join(all, "") != "0" {
		t.Errorf("%v duplicates left the host", all)
	}
	if all, err := w.table.Check(s); err != nil || len(all) != 1 {
		t.Errorf("differences: %v, %v, want that a device is missing", all, err)
	}
	w.sync(s)
	w.reaches(w.client, "tcp", "198.51.100.1:8080", "a 198.51.100.2")
	w.reaches(w.client, "tcp", "[2001:db8:ff::1]:8080", "a 2001:db8:ff::2")
}

// What comes out of the doorway and is not published any more does not reach the host's own
// services.
func TestNoLongerPublished(t *testing.T) {
	t.Parallel()
	w := newBed(t)
	w.sync(w.published("tcp"))
	serve(t, w.host, 8080)
	nft(t, w.host, "flush map ip cleat-net ports-anywhere; flush map ip6 cleat-net ports-anywhere")
	w.reaches(w.client, "tcp", "198.51.100.1:8080", "")
	w.reaches(w.client, "tcp", "[2001:db8:ff::1]:8080", "")
}

// The mark of the table is gone once a packet is routed, and the marks of others are kept.
func TestMarks(t *testing.T) {
	t.Parallel()
	w := newBed(t)
	w.sync(w.published("tcp"))
	nft(t, w.host, `table inet assume {
		chain prerouting { type filter hook prerouting priority -300; iifname nic tcp dport 8080 meta mark set 0x00a50000; }
		chain forward { type filter hook forward priority 10; iifname cleat-in1 meta mark 0x00a50000 counter; meta mark & 0x01000000 != 0 counter; }
	}`)
	w.reaches(w.client, "tcp", "198.51.100.1:8080", "a 198.51.100.2")
	w.reaches(w.client, "tcp", "[2001:db8:ff::1]:8080", "a 2001:db8:ff::2")
	if all := counted(t, w.host, "inet"); strings.Join(all, " ") != "2 0" {
		t.Errorf("packets with the mark of others, and with the table's own: %v, want 2 and 0", all)
	}
}

// Tables of several names work beside each other, each with its own doorway. Their networks do
// not reach each other. Ports that the other table publishes are services of the host.
func TestTwoTables(t *testing.T) {
	t.Parallel()
	w := newBed(t)
	other := firewall.Table{NS: w.host.NS, Name: "cleat-other", Devices: "cl-other", Mark: 1 << 25}
	tcp := protocolOf("tcp")
	web := w.web()
	web.HostAccess = firewall.HostAccessAll
	one := firewall.State{Networks: []firewall.Network{web}, Ports: []firewall.Port{publish(tcp, 8080, "192.0.2.2:80"), publish(tcp, 8080, "[2001:db8:0:1::2]:80")}}
	two := firewall.State{Networks: []firewall.Network{w.db()}, Ports: []firewall.Port{publish(tcp, 8082, "192.0.2.66:80"), publish(tcp, 8082, "[2001:db8:0:2::2]:80")}}
	checkSources(t, w.host.NS)
	must(t, w.table.Sync(one), other.Sync(two))
	assertState(t, w.table, one)
	assertState(t, other, two)
	w.reaches(w.client, "tcp", "198.51.100.1:8080", "a 198.51.100.2")
	w.reaches(w.client, "tcp", "[2001:db8:ff::1]:8080", "a 2001:db8:ff::2")
	w.reaches(w.client, "tcp", "198.51.100.1:8082", "c 198.51.100.2")
	w.reaches(w.client, "tcp", "[2001:db8:ff::1]:8082", "c 2001:db8:ff::2")
	w.reaches(w.a, "tcp", "192.0.2.66:80", "")
	w.reaches(w.c, "tcp", "192.0.2.2:80", "")
	w.reaches(w.a, "tcp", "198.51.100.1:8082", "c 192.0.2.2")
	w.reaches(w.c, "tcp", "198.51.100.1:8080", "")
	must(t, other.Remove())
	assertState(t, w.table, one)
	w.reaches(w.client, "tcp", "198.51.100.1:8080", "a 198.51.100.2")
}
