// Package tunnel has the command tunnel with its subcommands.
package tunnel
