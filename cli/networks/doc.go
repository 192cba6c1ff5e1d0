// Package networks implements `cleat net`: named networks of containers.
//
// Each file has one command or a few that belong together. error.go turns errors of
// network/named into hints, and print.go makes the tables.
package networks
