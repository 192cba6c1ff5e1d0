// Package columns fits text into a terminal's columns: it measures, clips, pads
// and wraps, and takes out what could move the cursor.
//
// Text from elsewhere (names of processes, links, containers) goes through Plain
// first: the other functions trust that a rune only takes its columns.
//
// # Limits
//
// What a terminal makes of emoji sequences and of ambiguous widths (UAX #11) is
// its own affair; ambiguous runes count as one column.
//
// Sources: Unicode Standard Annex #11, East Asian Width.
package columns
