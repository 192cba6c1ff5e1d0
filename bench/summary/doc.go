// Package summary turns the samples of a run into what people ask of it: the
// summary of each cell, the comparison of two runs, and a recommendation.
//
// # Theory of operation
//
// [Summarize], [Compare] and [Recommend] are pure functions: the same samples in
// any order give the same bytes. [Read] and [Write] are the only ones that touch
// files.
//
// What counts: samples of block 0 are the warm-up and never count. A sample
// that is marked bad or failed does not count either, but is counted and shown.
// A metric's n is the number of samples that count and hold the metric.
//
// Summaries: the median and its interval come from package stats. Latency
// percentiles are those of all histograms merged; their mean is that same
// number, since a mean of percentiles means nothing, and their interval and
// standard error tell how far the percentile of single blocks lies from another
// (see stats.Percentile). Where a histogram is missing, the median of the
// percentiles is shown, with a warning.
//
// Comparing: two runs are matched cell by cell and metric by metric. Values are
// compared as they are, since the blocks of one run have nothing to do with those
// of the other. All p values of a comparison are corrected together.
//
// Recommending: a role is a question ("container to container, one host"), and
// only networks of one role and direction compete. Of the factors that the run
// varied one combination is looked at, the one that most of the networks were
// measured under, so that like is compared with like. There all pairs of
// networks are tested, with the effect of the blocks taken off, and corrected
// together; testing all pairs, not just the best against the rest, keeps the
// choice of the best from spoiling the level. Whatever can't be told apart
// from the best is named beside it, in the order of the catalogue, not by value.
//
// # Limits
//
// Compare knows no difference between a change of the software and a change of
// the day. It warns where the two environments differ, or the baselines do.
// Summaries without samples can be compared only by their means and standard
// errors, and not at all in processor time.
package summary
