package survey

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The kernel knows one Open vSwitch device with the ports of all bridges. Which port belongs to
// which bridge is in the switch's database. One request (RFC 7047) reads three of its tables
// (ovs-vswitchd.conf.db(5)), and changes nothing.

// ovsTimeout bounds the wait for the answer, which takes a millisecond.
const ovsTimeout = time.Second

// maxOVSBytes bounds the answer. With 10,000 ports it has some 3 MB.
const maxOVSBytes = 32 << 20

// ovsSocket returns the path of the database's socket. OVS_RUNDIR changes it as it does for the
// switch's own programs.
func ovsSocket() string {
	return filepath.Join(cmp.Or(os.Getenv("OVS_RUNDIR"), "/run/openvswitch"), "db.sock")
}

type ovsRow map[string]any

// ovsTables are the rows of Bridge, Port and Interface.
type ovsTables struct{ bridges, ports, interfaces []ovsRow }

// readOVS reads the database. The error is fs.ErrNotExist if there is none.
func readOVS(ctx context.Context, socket string) (*ovsTables, error) {
	ctx, cancel := context.WithTimeout(ctx, ovsTimeout)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("read the database of Open vSwitch: %w", err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	selects := []any{"Open_vSwitch"}
	for table, columns := range ovsColumns {
		selects = append(selects, map[string]any{"op": "select", "table": ovsTableNames[table], "where": []any{}, "columns": columns})
	}
	if err := json.NewEncoder(c).Encode(map[string]any{"method": "transact", "params": selects, "id": 0}); err != nil {
		return nil, fmt.Errorf("read the database of Open vSwitch: %w", err)
	}
	var answer struct {
		Error  any
		Result []struct {
			Rows  []ovsRow
			Error string
		}
	}
	if err := json.NewDecoder(io.LimitReader(c, maxOVSBytes)).Decode(&answer); err != nil {
		return nil, fmt.Errorf("read the database of Open vSwitch: %w", err)
	}
	if answer.Error != nil || len(answer.Result) < len(ovsColumns) {
		return nil, fmt.Errorf("read the database of Open vSwitch: it answers %v", answer.Error)
	}
	for _, r := range answer.Result {
		if r.Error != "" {
			return nil, fmt.Errorf("read the database of Open vSwitch: it answers %s", r.Error)
		}
	}
	return &ovsTables{answer.Result[0].Rows, answer.Result[1].Rows, answer.Result[2].Rows}, nil
}

// The tables that are read, and their columns.
var (
	ovsTableNames = []string{"Bridge", "Port", "Interface"}
	ovsColumns    = [][]string{
		{"name", "ports"},
		{"_uuid", "name", "interfaces", "tag", "trunks"},
		{"_uuid", "name", "type", "options", "mac_in_use", "error"},
	}
)

func (r ovsRow) text(column string) string { s, _ := r[column].(string); return s }

// set returns the elements of a column. A single element is encoded without the set.
func (r ovsRow) set(column string) []any {
	pair, ok := r[column].([]any)
	if ok && len(pair) == 2 && (pair[0] == "set" || pair[0] == "map") {
		all, _ := pair[1].([]any)
		return all
	}
	if r[column] == nil {
		return nil
	}
	return []any{r[column]}
}

// option returns a value of the column "options".
func (r ovsRow) option(name string) string {
	for _, e := range r.set("options") {
		if kv, ok := e.([]any); ok && len(kv) == 2 && kv[0] == name {
			return fmt.Sprint(kv[1])
		}
	}
	return ""
}

func (r ovsRow) numbers(column string) []string {
	var out []string
	for _, e := range r.set(column) {
		if n, ok := e.(float64); ok {
			out = append(out, strconv.Itoa(int(n)))
		}
	}
	return out
}

// among returns the rows that a column refers to.
func (r ovsRow) among(column string, rows []ovsRow) []ovsRow {
	var out []ovsRow
	for _, e := range r.set(column) {
		if i := slices.IndexFunc(rows, func(o ovsRow) bool { return fmt.Sprint(o["_uuid"]) == fmt.Sprint(e) }); i >= 0 {
			out = append(out, rows[i])
		}
	}
	return out
}

// vlans names the VLANs that a port is in, "" for all of them.
func (r ovsRow) vlans() string {
	if tag := r.numbers("tag"); len(tag) > 0 {
		return "VLAN " + tag[0]
	}
	if trunks := r.numbers("trunks"); len(trunks) > 0 {
		return "VLANs " + strings.Join(trunks, ",")
	}
	return ""
}

// readSwitches adds what the switch's database says. An error is worth a note only if there is a
// switch.
func (s *Survey) readSwitches(ctx context.Context, socket string) {
	tables, err := readOVS(ctx, socket)
	switch {
	case err == nil:
		s.joinPorts(tables)
	case s.hasSwitch():
		s.Notes = append(s.Notes, fmt.Sprintf("It is not known which ports belong to which bridge of Open vSwitch: %v.", err))
	}
}

func (s *Survey) hasSwitch() bool {
	return slices.ContainsFunc(s.Namespaces, func(n Namespace) bool {
		return slices.ContainsFunc(n.Links, func(l Link) bool { return l.Kind == kindOVS })
	})
}

// kindOVS is the kernel's kind of bridges and internal ports.
const kindOVS = "openvswitch"

// joinPorts adds what the database says to the links of the switch's namespace.
func (s *Survey) joinPorts(t *ovsTables) {
	home := s.switchNamespace()
	if home == nil {
		return
	}
	for _, b := range t.bridges {
		i := slices.IndexFunc(home.Links, func(l Link) bool { return l.Name == b.text("name") })
		if i < 0 {
			continue
		}
		bridge := &home.Links[i]
		bridge.Kind, bridge.Detail = kindOVS, "bridge"
		for _, p := range b.among("ports", t.ports) {
			for _, f := range p.among("interfaces", t.interfaces) {
				if f.text("name") != bridge.Name {
					s.plug(home, bridge, p, f)
				}
			}
		}
		slices.SortFunc(bridge.Ports, func(a, b SwitchPort) int { return Natural(a.Name, b.Name) })
	}
}

func (s *Survey) switchNamespace() *Namespace {
	for i := range s.Namespaces {
		if slices.ContainsFunc(s.Namespaces[i].Programs, func(p Program) bool { return p.Name == "ovs-vswitchd" }) {
			return &s.Namespaces[i]
		}
	}
	return nil
}

// plug makes an interface a port of a bridge.
func (s *Survey) plug(home *Namespace, bridge *Link, port, iface ovsRow) {
	name, vlans := iface.text("name"), port.vlans()
	for i := range home.Links {
		if l := &home.Links[i]; l.Name == name {
			l.Master = bridge.Index
			l.markPort(vlans)
			return
		}
	}
	if l := s.movedPort(home, iface); l != nil {
		l.Parent = &End{NamespaceID: home.ID, Namespace: home.Label, Index: bridge.Index, Name: bridge.Name, NSID: -1}
		l.markPort(vlans)
		return
	}
	bridge.Ports = append(bridge.Ports, SwitchPort{
		Name: name, Kind: iface.text("type"), VLANs: vlans, Remote: iface.option("remote_ip"), Peer: iface.option("peer"), Error: iface.text("error"),
	})
}

// movedPort returns the link of an internal port that was moved into another namespace, nil if
// there is none. Its name and its address identify it.
func (s *Survey) movedPort(home *Namespace, iface ovsRow) *Link {
	if iface.text("type") != "internal" {
		return nil
	}
	for i := range s.Namespaces {
		n := &s.Namespaces[i]
		for j := range n.Links {
			if l := &n.Links[j]; n != home && l.Name == iface.text("name") && l.MAC == iface.text("mac_in_use") && l.Parent == nil {
				return l
			}
		}
	}
	return nil
}

func (l *Link) markPort(vlans string) {
	if l.Kind == kindOVS || l.Kind == "tap" || l.Kind == "tun" { // an internal port; a TAP or TUN device if the switch works without the kernel module
		l.Kind, l.Detail = kindOVS, "port"
	}
	if vlans != "" {
		l.Detail = strings.TrimSpace(l.Detail + " " + vlans)
	}
}
