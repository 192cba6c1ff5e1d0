// Package mptcp has the command mptcp with its subcommands.
package mptcp
