// Package exit has the exit codes of all commands. It prints the error with which a command
// ends, and ends a command on signals.
package exit
