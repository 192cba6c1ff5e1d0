// Package procstat splits /proc/PID/stat into fields (proc_pid_stat(5)), and reads the machine's
// processor time (proc_stat(5)).
package procstat

import (
	"bytes"
	"strconv"
	"strings"
	"time"
)

// Stat is the status line of a process or thread.
type Stat struct {
	Name   string   // as the program chose it
	fields []string // field 3 and those after it
}

// first is the number of the first field after the name.
const first = 3

// Parse splits a line "PID (NAME) STATE PPID …". The name may contain spaces and parentheses, so
// it ends at the last parenthesis. Parse reports whether there is a name.
func Parse(text []byte) (Stat, bool) {
	from, to := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if from < 0 || to < from {
		return Stat{}, false
	}
	return Stat{Name: string(text[from+1 : to]), fields: strings.Fields(string(text[to+1:]))}, true
}

// Started returns how long after the machine's start the process or thread was started, to 10 ms. It reports
// whether the line says so.
func (s Stat) Started() (afterBoot time.Duration, ok bool) {
	const startTime = 22
	ticks, err := strconv.ParseInt(s.Field(startTime), 10, 64)
	return time.Duration(ticks) * (time.Second / UserHZ), err == nil
}

// Field returns a field by its number in proc_pid_stat(5), 3 or more. It is empty if the line
// has fewer fields.
func (s Stat) Field(n int) string {
	if n-first >= len(s.fields) {
		return ""
	}
	return s.fields[n-first]
}
