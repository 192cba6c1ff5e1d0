// Package bench has the command bench with its subcommands, and recommend.
package bench
