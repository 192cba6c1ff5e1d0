package attach

import "testing"

func TestNeighbourTableWarning(t *testing.T) {
	const head = "entries  allocs   destroys hash_grows lookups  hits     res_failed rcv_probes_mcast rcv_probes_ucast periodic_gc_runs forced_gc_runs unresolved_discards table_fulls\n"
	line := func(entries, fulls string) string {
		return entries + " 00000001 00000002 00000003 00000004 00000005 00000006 00000007 00000008 00000009 0000000a 0000000b " + fulls + "\n"
	}
	table := neighbourTable{"IPv4", "", "net.ipv4.neigh.default.gc_thresh3"}
	const has = "the kernel's IPv4 neighbour table, which all namespaces share, has "
	const then = "; when it is full, no new neighbour can be reached; as root: sysctl -w net.ipv4.neigh.default.gc_thresh3=4096"
	for _, tt := range []struct{ name, stat, most, want string }{
		{"room", head + line("00000333", "00000000"), "1024\n", ""},
		{"nearly full", head + line("00000334", "00000000") + line("00000334", "00000000"), "1024\n", has + "820 of at most 1024 entries" + then},
		{"full, on two processors", head + line("00000400", "00000010") + line("00000400", "00000001"), "1024\n", has + "1024 of at most 1024 entries and was full 17 times" + then},
		{"was full once, now empty", head + line("00000001", "00000010"), "1024\n", ""},
		{"columns of an older kernel", "entries  allocs\n00000400 00000001\n", "1024\n", has + "1024 of at most 1024 entries" + then},
		{"nothing", "", "1024\n", ""},
		{"nonsense", head + "x y z\n", "many", ""},
	} {
		if got := table.warning(tt.stat, tt.most); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
