package firewall

import (
	"testing"

	"golang.org/x/sys/unix"
)

// Whoever has CAP_NET_ADMIN in the namespace can send to the groups that Watch reads.
func FuzzNews(f *testing.F) {
	b := newBatch(0)
	b.deleteTable("cleat-net", ipv4)
	b.begin(unix.RTM_DELRULE, 0, 0, 0, "")
	b.buf = append(b.buf, make([]byte, unix.SizeofRtMsg-nfgenmsgBytes)...)
	b.bytes(unix.FRA_PRIORITY, native.AppendUint32(nil, rulePriority))
	b.begin(unix.RTM_DELLINK, 0, 0, 0, "")
	b.buf = append(b.buf, make([]byte, unix.SizeofIfInfomsg-nfgenmsgBytes)...)
	b.string(unix.IFLA_IFNAME, "cleat-in0")
	b.end(b.message)
	t := Table{Name: "cleat-net"}
	tables, doorways := 0, 0
	for m := range messages(b.buf) {
		if t.concernsTables(nil)(m) {
			tables++
		}
		if t.concernsDoorway(m) {
			doorways++
		}
	}
	if tables != 1 || doorways != 2 {
		f.Errorf("%d messages concern the tables, want 1; %d the doorway, want 2", tables, doorways)
	}
	f.Add(b.buf)
	f.Fuzz(func(_ *testing.T, data []byte) {
		for m := range messages(data) {
			t.concernsTables(nil)(m)
			t.concernsDoorway(m)
			readConnection(m.body)
		}
	})
}
