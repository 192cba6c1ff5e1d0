// Package report turns the results of an experiment into something to look at:
// one HTML file for people, one table for terminals.
//
// # Theory of operation
//
// Everything shown is a pure function of an [Input]: no clock, no network, no
// environment, and the same Input gives the same bytes. The package does no
// statistics; medians, intervals and standings arrive in the Input.
//
// Three steps lead from numbers to pixels. First the factors that really vary
// are found (factor.go): a factor counts when two cells of one network differ
// in it for one metric and nothing already counted tells them apart. Then the
// numbers are arranged (rows.go for tables, figure.go for curves, bars.go for
// bars): the numeric factor with the most levels becomes the x axis, networks
// become lines, and the rest become small multiples. Last, templates write them
// out (html.go, templates/, table.go).
//
// The SVG is laid out by the browser: horizontal positions are percentages of
// the plot's width, vertical ones are pixels, and names and values are ordinary
// text beside it. So nothing shrinks on a telephone. Colours are custom
// properties, chosen by prefers-color-scheme. doc/adr/0002-report-plots.md says
// why no plotting library does this.
//
// # Limits
//
// Eight colours are told apart; a ninth network shares a colour and differs by
// marker and dashes. A run with hundreds of cells gets its tables folded away
// on screen. The file is well-formed XML as well as HTML, which the tests use.
//
// # Sources
//
// Palette after M. Okabe and K. Ito, "Color Universal Design" (2008), darkened
// or lightened to reach a contrast of 3:1 (WCAG 2.1, 1.4.11).
package report
