// Package help prints the help of commands, and has the command help.
package help
