package attach

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// neighbourTables are the kernel's neighbour tables. All namespaces share them, so many
// containers can fill them although each has few neighbours.
var neighbourTables = []neighbourTable{
	{"IPv4", "/proc/net/stat/arp_cache", "net.ipv4.neigh.default.gc_thresh3"},
	{"IPv6", "/proc/net/stat/ndisc_cache", "net.ipv6.neigh.default.gc_thresh3"},
}

type neighbourTable struct {
	family string
	stat   string // path of the statistics, which exists only in the initial namespace
	limit  string // parameter with the largest number of entries
}

// noteNeighbourTables notes if a table is nearly full. When it is full, no namespace can reach
// a new neighbour.
func (p *planner) noteNeighbourTables() {
	for _, t := range neighbourTables {
		stat, statErr := os.ReadFile(t.stat)
		limit, limitErr := os.ReadFile("/proc/sys/" + strings.ReplaceAll(t.limit, ".", "/"))
		if statErr != nil || limitErr != nil {
			continue
		}
		if text := t.warning(string(stat), string(limit)); text != "" {
			p.note("%s", text)
		}
	}
}

// warning returns the note about a table; "" if it has room.
func (t neighbourTable) warning(stat, limitText string) string {
	limit, err := strconv.Atoi(strings.TrimSpace(limitText))
	if err != nil {
		return ""
	}
	used, refused := tableUse(stat)
	const threshold = 80 // percent
	if used*100 <= limit*threshold {
		return ""
	}
	text := fmt.Sprintf("the kernel's %s neighbour table, which all namespaces share, has %d of at most %d entries", t.family, used, limit)
	if refused > 0 {
		text += fmt.Sprintf(" and was full %d times", refused)
	}
	const factor = 4
	return text + fmt.Sprintf("; when it is full, no new neighbour can be reached; as root: sysctl -w %s=%d", t.limit, limit*factor)
}

// tableUse parses /proc/net/stat/arp_cache: a line with the names of the columns, then a line
// of hexadecimal numbers for each processor. "entries" is the same on all; "table_fulls"
// counts refused entries (neigh_stat_seq_show, net/core/neighbour.c).
func tableUse(stat string) (entries, refused int) {
	var names []string
	for line := range strings.Lines(stat) {
		fields := strings.Fields(line)
		if names == nil {
			names = fields
			continue
		}
		for i, f := range fields[:min(len(fields), len(names))] {
			n, err := strconv.ParseUint(f, 16, 32)
			if err != nil {
				continue
			}
			switch names[i] {
			case "entries":
				entries = int(n)
			case "table_fulls":
				refused += int(n)
			}
		}
	}
	return entries, refused
}
