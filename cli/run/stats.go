package run

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"cleat/cli/term"
	"cleat/internal/columns"
	"cleat/internal/ledger"
	"cleat/sandbox/control"
)

// StatsText formats the counters. Those that count errors are omitted if they are 0.
func StatsText(s control.Stats) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\toutbound\tinbound\t")
	fmt.Fprintf(w, "packets\t%d\t%d\t\n", s.TunOutPackets, s.TunInPackets)
	fmt.Fprintf(w, "bytes with headers\t%s\t%s\t\n", term.Bytes(s.TunOutBytes), term.Bytes(s.TunInBytes))
	if s.Spliced > 0 {
		fmt.Fprintf(w, "spliced past the device\t%s\t%s\t\n", term.Bytes(s.SplicedOutBytes), term.Bytes(s.SplicedInBytes))
	}
	w.Flush()
	spliced := ""
	if s.Spliced > 0 {
		spliced = fmt.Sprintf(" (%d spliced)", s.Spliced)
	}
	fmt.Fprintf(&b, "flows: %d TCP%s, %d UDP, %d ping; %d open\n", s.TCPFlows, spliced, s.UDPFlows, s.ICMPFlows, s.Open)
	if s.Substituted+s.Lent+s.Datagram > 0 {
		fmt.Fprintf(&b, "by host sockets: %s, %s, %d UDP\n",
			term.Count(s.Substituted, "connection"), term.Count(s.Lent, "listener"), s.Datagram)
	}
	b.WriteString(ledgerText(s.Ledger))
	for _, way := range []struct {
		by   string
		many map[string]uint64
	}{{"by sockets of the command", s.Kept}, {"by the device", s.Unspliced}} {
		for _, why := range slices.Sorted(maps.Keys(way.many)) {
			fmt.Fprintf(&b, "%d TCP %s: %s\n", way.many[why], way.by, columns.Plain(why))
		}
	}
	for _, c := range []struct {
		n    uint64
		what string
	}{
		{s.Refused, "flows refused by rules"},
		{s.OverLimit, "flows or packets over limits"},
		{s.Retransmits, "segments retransmitted to the inside"},
		{s.Dropped, "packets dropped by the device"},
		{s.Returned, "packets of spliced connections that crossed the device"},
		{s.Intruders, "connections to the splice gate that were not admitted"},
		{s.HandedOver, "packets passed from one queue's thread to another"},
		{s.Malformed, "malformed packets from the inside"},
		{s.Spoofed, "packets from the inside with a forged source"},
		{s.Unsupported, "packets of unsupported protocols"},
	} {
		if c.n > 0 {
			fmt.Fprintf(&b, "%s: %d\n", c.what, c.n)
		}
	}
	return b.String()
}

// ledgerText formats the resources that this process uses for the guest.
func ledgerText(u ledger.Usage) string {
	refused := ""
	if u.Refused > 0 {
		refused = fmt.Sprintf("; refused %d times", u.Refused)
	}
	return fmt.Sprintf("in use: %d of %d descriptors, %s of %s, %d of %d goroutines%s\n",
		u.Used.Descriptors, u.Limit.Descriptors, term.Bytes(uint64(u.Used.Bytes)), term.Bytes(uint64(u.Limit.Bytes)), u.Used.Goroutines, u.Limit.Goroutines, refused)
}
