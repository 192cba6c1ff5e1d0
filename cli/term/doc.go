// Package term prints for people and programs: tables, JSON, counts with units. It knows
// what the terminal can do.
package term
