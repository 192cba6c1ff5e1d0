// Package columns lays out text in a terminal's columns: it measures, clips, pads and
// wraps, and removes control characters.
//
// Pass foreign text (names of processes, links, containers) through Plain first: the
// other functions assume that a rune does nothing but occupy columns.
//
// # Limits
//
// Terminals differ in emoji sequences and in ambiguous widths (UAX #11). Ambiguous runes
// count as one column.
//
// Sources: Unicode Standard Annex #11, East Asian Width.
package columns
