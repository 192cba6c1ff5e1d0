// Package exit defines the exit codes, ends a command on signals, and reports its last
// error.
package exit
