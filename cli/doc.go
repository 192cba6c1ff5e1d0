// Package cli is cleat's command line: the root command, its help and its exit codes.
// Each command, or family of commands, is a package below this one. What they share is in
// hint, exit, term, help, complete and container.
//
// A command is executed in this process, with two exceptions. Commands that run in a lab
// start the program again inside it. Commands that change wiring are sent to a running
// keeper (package network/keep), which executes them here, in answer.
package cli
