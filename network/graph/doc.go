// Package graph draws a survey of what is wired to what: as trees in a terminal,
// and as one SVG file.
//
// # Theory of operation
//
// Drawing is a pure function of the survey. A view turns the survey's relations
// around: what hangs on a link is its ports, then what stands on it, then tunnels
// from other namespaces that send by it. Both drawings are made of that and of the
// same words.
//
// In text a namespace is a tree, the host first: uplinks, then bridges as trunks
// with their ports as branches, each with the other end's name and addresses. What
// stands on a link from within another namespace is a branch, too.
//
// In the SVG everything is a box with ports on its left edge, in columns: the
// host's uplinks on top, its bridges and other links below, then the namespaces.
// Left of each column is a gutter. A wire, which is a bridge with its ports, a
// device with what stands on it or a pair, is a vertical lane in each gutter where
// it has ports, and a horizontal track that joins its lanes in one of the two
// channels between the rows of boxes. Boxes and text are never in gutters or
// channels, so no wire crosses any. Lanes and tracks that would touch lie side by
// side (greedy colouring of intervals, by where they begin). The file holds the
// drawing twice, in several columns and in one, and shows that which fits the
// width it gets.
//
// Names of processes, links, containers and hosts are whatever somebody made
// them: text goes through columns.Plain and, in the SVG, is escaped.
//
// # Limits
//
// The width of text in a font that is not known is estimated: too long names are
// clipped, and whole in a tooltip.
//
// Sources: SVG 2 (W3C), CSS Media Queries 4, ip-link(8) for the names of kinds.
package graph
