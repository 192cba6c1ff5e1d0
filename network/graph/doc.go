// Package graph draws a survey of what is wired to what, as trees in a terminal and as one SVG file.
//
// # Theory of operation
//
// Drawing is a pure function of the survey. A view inverts the survey's relations: below a link
// hang its ports, then the devices on it, then tunnels from other namespaces that send by it. Both
// drawings use the view and the same words.
//
// In text a namespace is a tree, the host's first: uplinks, then bridges with their ports as
// branches, each with the name and addresses of its other end. A device on a link is a branch even
// if it is in another namespace.
//
// Networks by name come last: each is a tree of its containers, with their published ports, and of
// its rules.
//
// In the SVG everything is a box with ports on its left edge. There are four rows of boxes: the
// host's uplinks, its bridges and other links, the other namespaces, and networks by name. A
// network is on the wire of its device. Left of each column is a gutter. A wire is a bridge with its ports, a device with the devices on it, or a pair. It is a
// vertical lane in each gutter where it has ports, and a horizontal track that joins its lanes, in
// one of the channels between the rows. Boxes and text are never in gutters or channels, so no
// wire crosses any. Lanes and tracks that would touch lie side by side (greedy colouring of
// intervals, in the order of their beginnings). The file holds the drawing twice, in several
// columns and in one, and shows the one that fits the available width.
//
// Others choose the names of processes, links, containers and hosts: all text goes through
// columns.Plain, and is escaped in the SVG.
//
// # Limits
//
// The font is not known, so the width of text is estimated. Names that are too long are clipped,
// and complete in a tooltip.
//
// Sources: SVG 2 (W3C), CSS Media Queries 4, ip-link(8) for the names of kinds.
package graph
