package link

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"cleat/internal/program"
)

// ovsSettings are columns of a record, as ovs-vsctl accepts them. The add methods
// skip zero values.
type ovsSettings []string

func (s *ovsSettings) add(column, value string) {
	if value != "" {
		*s = append(*s, column+"="+value)
	}
}

func (s *ovsSettings) addInt(column string, value int) {
	if value != 0 {
		s.add(column, strconv.Itoa(value))
	}
}

// command returns arguments that set the columns, in the same transaction as the
// command before them.
func (s ovsSettings) command(table, record string) []string {
	if len(s) == 0 {
		return nil
	}
	return append([]string{"--", "set", table, record}, s...)
}

// ovsTimeout limits each ovs-vsctl, which waits until ovs-vswitchd has applied a
// change.
const ovsTimeout = 10 * time.Second

// OVSControl is the name of the program that configures Open vSwitch.
const OVSControl = "ovs-vsctl"

// ovsRun runs ovs-vsctl and returns its output.
func ovsRun(db string, args ...string) (string, error) {
	options := []string{fmt.Sprintf("--timeout=%d", ovsTimeout/time.Second)}
	if db != "" {
		options = append(options, "--db="+db)
	}
	cmd := program.Command(OVSControl, append(options, args...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("ovs-vsctl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return string(out) + stderr.String(), nil
}

// ovsRemove removes a bridge or port. It is not an error if the bridge, the port or
// the whole switch is already gone.
func ovsRemove(db, command string, args ...string) error {
	if path, ok := strings.CutPrefix(db, "unix:"); ok {
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			return nil
		}
	}
	_, err := ovsRun(db, append([]string{"--if-exists", command}, args...)...)
	return err
}

// ovsRow is a record of the switch's database (RFC 7047 section 5.1).
type ovsRow map[string]any

// ovsRecords returns the record called name of each table, and the output of the
// command after "--" in tables, if there is one. It runs a single ovs-vsctl,
// because starting the program takes longer than the queries.
func ovsRecords(db, name string, tables ...string) (rows []ovsRow, rest string, err error) {
	var command []string
	if i := slices.Index(tables, "--"); i >= 0 {
		tables, command = tables[:i], tables[i:]
	}
	args := []string{"--format=json"}
	for _, t := range tables {
		args = append(args, "--", "list", t, name)
	}
	out, err := ovsRun(db, append(args, command...)...)
	if err != nil {
		return nil, "", err
	}
	d := json.NewDecoder(strings.NewReader(out))
	for _, t := range tables {
		row, err := decodeOVSRow(d)
		if err != nil {
			return nil, "", fmt.Errorf("decode %s %q of open vswitch: %w", t, name, err)
		}
		rows = append(rows, row)
	}
	return rows, out[d.InputOffset():], nil
}

func decodeOVSRow(d *json.Decoder) (ovsRow, error) {
	var answer struct {
		Headings []string
		Data     [][]any
	}
	if err := d.Decode(&answer); err != nil {
		return nil, err
	}
	if len(answer.Data) != 1 || len(answer.Data[0]) != len(answer.Headings) {
		return nil, fmt.Errorf("%d records", len(answer.Data))
	}
	row := ovsRow{}
	for i, column := range answer.Headings {
		row[column] = answer.Data[0][i]
	}
	return row, nil
}

// string and int return a column, or zero if it is an empty optional column, which
// is encoded as an empty set.
func (r ovsRow) string(column string) string { s, _ := r[column].(string); return s }
func (r ovsRow) int(column string) int       { n, _ := r[column].(float64); return int(n) }

// RemoveOVSPort removes a port from a bridge. A missing port is not an error. db is
// as in OVSPortSpec.
func RemoveOVSPort(db, bridge, port string) error { return ovsRemove(db, "del-port", bridge, port) }

// RemoveOVSBridge removes a bridge with its ports. A missing bridge is not an
// error. db is as in OVSBridgeSpec.
func RemoveOVSBridge(db, name string) error { return ovsRemove(db, "del-br", name) }

// OVSPorts lists the names of a bridge's ports, except its local port.
func OVSPorts(db, bridge string) ([]string, error) {
	out, err := ovsRun(db, "list-ports", bridge)
	return strings.Fields(out), err
}

// HasOVSPort reports whether the switch has a port with that name on any bridge. db
// is as in OVSPortSpec.
func HasOVSPort(db, port string) (bool, error) {
	out, err := ovsRun(db, "--bare", "--columns=name", "find", "port", "name="+port)
	return strings.TrimSpace(out) != "", err
}
