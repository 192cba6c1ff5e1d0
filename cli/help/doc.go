// Package help prints the help of commands, and has the command help. It collects what the
// manual pages (package man) add to that: exit codes and files.
package help
