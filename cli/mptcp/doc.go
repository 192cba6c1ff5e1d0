// Package mptcp has the command mptcp with its subcommands setup, status and run (package
// mptcp).
package mptcp
