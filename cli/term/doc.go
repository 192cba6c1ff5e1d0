// Package term formats output for people and for programs: tables, JSON, counts and sizes
// with units. Names and messages that others chose can't send escape sequences to the
// terminal, or forge lines, through its tables and JSON (package columns).
package term
