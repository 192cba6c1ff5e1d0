package attach

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// neighbourTables are the kernel's tables of neighbours. All namespaces share them,
// so that many containers fill them where each has few.
var neighbourTables = []neighbourTable{
	{"IPv4", "/proc/net/stat/arp_cache", "net.ipv4.neigh.default.gc_thresh3"},
	{"IPv6", "/proc/net/stat/ndisc_cache", "net.ipv6.neigh.default.gc_thresh3"},
}

type neighbourTable struct {
	family string
	stat   string // path, which is there in the first namespace alone
	limit  string // the parameter with how many entries it may have
}

// crowded notes when a table is nearly full: then nobody finds anybody new, here or
// in any other namespace.
func (p *planner) noteNeighbourTables() {
	for _, t := range neighbourTables {
		stat, err := os.ReadFile(t.stat)
		if err != nil {
			continue
		}
		most, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(t.limit, ".", "/"))
		if err != nil {
			continue
		}
		if text := t.warning(string(stat), string(most)); text != "" {
			p.note("%s", text)
		}
	}
}

// warning is what there is to say of a table, "" for nothing.
func (t neighbourTable) warning(stat, most string) string {
	limit, err := strconv.Atoi(strings.TrimSpace(most))
	if err != nil {
		return ""
	}
	used, refused := tableUse(stat)
	const nearly = 80 // percent
	if used*100 <= limit*nearly {
		return ""
	}
	const roomier = 4 // times as many
	text := fmt.Sprintf("the kernel's table of %s neighbours, which all namespaces share, has %d of at most %d entries", t.family, used, limit)
	if refused > 0 {
		text += fmt.Sprintf(" and was full %d times", refused)
	}
	return text + fmt.Sprintf(": when it is full nobody finds a new neighbour; as root: sysctl -w %s=%d", t.limit, limit*roomier)
}

// tableUse reads /proc/net/stat/arp_cache: names of columns, then hexadecimal
// numbers, a line for each processor, of which "entries" is the same on all and
// "table_fulls" counts the entries that were refused (neigh_stat_seq_show,
// net/core/neighbour.c).
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
