// Package bench implements the commands bench, with its subcommands, and recommend.
package bench
