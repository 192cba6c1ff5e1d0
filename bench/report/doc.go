// Package report shows the results of an experiment: one HTML file for people, and
// tables for terminals.
//
// # Theory of operation
//
// Everything shown is a pure function of an [Input]: the package reads no clock, no
// network and no environment, and the same Input gives the same bytes. The package
// computes no statistics; medians, intervals and standings arrive in the Input.
//
// The layout follows from what metrics and factors declare (package cell); no code
// knows an experiment. A factor is either a setting, which belongs to a network's
// label, or a condition. A condition counts only if it varies: two cells differ in it,
// and no condition before it tells them apart (varying).
//
// Tables (layout.go): conditions that part results, such as the transport, give each
// level a table of its own. The other conditions and the roles are headings, below
// which networks stand beside each other. A table has a column for each metric of its
// rows; a new metric is declared in package cell. Columns of other things, such as the
// number of samples, are made in table.go for the terminal and in html.go for the page.
//
// Curves (figure.go): the numeric condition with the most levels is the x axis. Numbers
// of one label that differ only in x are a curve if they have at least three levels.
// Conditions that part results give each level a figure of its own, the others are
// panels. Where there are more curves than colours, each network gets its own panel.
//
// Bars (bars.go) show all other numbers, a panel for each combination of conditions.
//
// In the page (html.go, templates) the browser lays out the SVG: horizontal positions
// are percentages of the plot's width, vertical ones are pixels, and names and values
// are ordinary text beside it. So nothing shrinks on a telephone. Colours are custom
// properties, chosen by prefers-color-scheme. doc/adr/0002-report-plots.md explains why
// no plotting library is used. The terminal (table.go) shows curves as tables, and
// leaves out columns that do not fit in the order that metrics declare.
//
// # Limits
//
// Eight colours are distinguishable; further curves share a colour and differ by marker
// and dashes. Tables of a run with more than 40 rows are folded on screen. The file is
// well-formed XML as well as HTML, which the tests use.
//
// # Sources
//
// Palette after M. Okabe and K. Ito, "Color Universal Design" (2008), darkened or
// lightened to reach a contrast of 3:1 (WCAG 2.1, 1.4.11).
package report
