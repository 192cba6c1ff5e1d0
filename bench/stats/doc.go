// Package stats holds the statistics of the benchmark: what a handful of
// measurements of each network allows one to conclude, and no more. Its functions are
// pure, do no I/O and are safe for concurrent use. The order of values never matters.
//
// # Theory of operation
//
// Measurements of networks are few (8 or 10 a cell), skewed, sometimes bimodal, and
// share the drift of the machine. So nothing here assumes a normal distribution.
//
// Middle: the median, with the interval between two order statistics that are
// equally far from both ends. The true coverage of the interval follows from the
// binomial distribution and is returned with it. It is the smallest such interval
// that covers at least 95 %. Below six values no such interval exists; then the whole
// range is returned with the coverage it has (4 values: 87.5 %).
//
// Difference: the Mann–Whitney U test, with the exact distribution of U for up to 50
// values a side (25 with ties), and the interval for the ratio that inverts the test
// (Moses): the sorted quotients of all pairs, trimmed at both ends where U would be
// significant. The ratio itself is that of the medians. Test and interval therefore
// agree, except for ties. In the rare case that the ratio of the medians lies outside
// the interval, the interval is widened to hold it.
//
// Blocks: within one run each block measures each cell once, so whatever slows a
// whole block (another tenant, a hot processor) affects all cells of it. Pairing the
// two cells by block would remove this, but a signed-rank test of 8 blocks can't go
// below p = 0.0078, which no correction for a dozen comparisons survives. Instead the
// block's effect is estimated from all other cells and removed from both compared
// ones before the Mann–Whitney test, which goes down to p = 0.00016 for 8 and 8
// values. This is valid, since the labels of the two compared cells have no part in
// the estimate: under the null hypothesis the two values of a block stay
// exchangeable, whatever was subtracted. What remains of the block's effect, and the
// error of the estimate, is shared by both values of a block and makes the test
// conservative. The estimate is shrunk by the share of it that is noise, so that
// nothing is subtracted where blocks do not matter. Between two separate runs the
// values are compared as they are: there the effects of the blocks are part of the
// error by which two runs differ, and removing them would understate that error.
//
// Many comparisons: Holm's step-down correction, which bounds the chance of even one
// false difference, whatever the dependence between the tests.
//
// Two modes: see [Bimodal]. Percentiles: see [MergeHistograms]; they are never
// averaged. Processor time: see [CoresPerGbit].
//
// # Limits
//
// A run is one draw from all the runs a machine could have had. An interval describes
// the blocks of this run, and the comparison of two runs can't tell a change of the
// software from a change of the day. Trends within a run are not modelled. The
// intervals of ratios are not corrected for many comparisons, only the p values are, so
// that 1 may lie outside an interval although the corrected test finds no difference.
//
// # Sources
//
// H. B. Mann, D. R. Whitney, On a test of whether one of two random variables is
// stochastically larger than the other, 1947. J. L. Hodges, E. L. Lehmann, Rank
// methods for combination of independent experiments in analysis of variance,
// 1962 (alignment). M. Hollander, D. A. Wolfe, E. Chicken, Nonparametric
// Statistical Methods, sections 3.6, 4.1, 4.3, 7.1. S. Holm, A simple
// sequentially rejective multiple test procedure, 1979. R. Pyke, Spacings, 1965.
package stats
