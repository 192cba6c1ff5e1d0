// Package summary turns the samples of a run into results: the summary of each cell,
// the comparison of two runs, the comparison of one network with its rivals, and
// recommendations. It also writes the last three as text; tables of summaries and the
// HTML page are in package report. Cells, samples and metrics are defined in package
// cell.
//
// # Theory of operation
//
// [Summarize], [Compare], [Against] and [Recommend] are pure functions: the same samples
// in any order give the same bytes. Only [Read] and [Write] touch files.
//
// What counts: samples of block 0 are the warm-up and never count. A sample that is
// marked bad or that failed does not count either, but the summary counts it and gives
// the reason. If no sample of a cell and work counts, the last disturbed one of each
// block is used, with a warning. A metric's n is the number of samples that count and
// hold the metric.
//
// Summaries: the median and its interval come from package stats. Latency percentiles
// are those of all histograms merged. Their mean is that same number, since a mean of
// percentiles means nothing, and their interval and standard error show how far the
// percentiles of single blocks lie apart (see stats.Percentile). Where a histogram is
// missing, the median of the percentiles is used, with a warning. A percentile above which
// fewer than ten transactions lie has a warning in place of the interval.
//
// Warnings have a code, the number of samples that they concern, and a severity, so
// that those of several samples, metrics or networks can be merged (cell.Warning).
//
// Comparing: two runs are matched cell by cell and metric by metric. Values are
// compared as they are, since the blocks of one run have nothing to do with those of
// the other. All p values of a comparison are corrected together. A regression is a
// change whose whole interval lies beyond the threshold, or a number that the new run
// could not measure; baselines never regress (Compare). Two runs without a common row
// can't be compared.
//
// Recommending: a role is a question ("container to container, one host"), and only
// networks of one role and direction compete. Of the conditions that the run varied,
// one combination is used, the one that most networks were measured under, so that like
// is compared with like. All pairs of networks are tested, with the effects of blocks
// removed, and corrected together: testing all pairs, not just the best against the
// others, keeps the choice of the best from spoiling the significance level. Networks
// that can't be told apart from the best are named beside it in catalogue order, not by
// value. Samples that are too few or disturbed support no recommendation
// (Advice.Insufficient).
//
// One network against its rivals: a [Versus] has the ratios of each network of the
// subject's role to the baseline and to the best rival, for each metric and combination
// of factors. It recommends nothing.
//
// # The way of a sample
//
// A line of samples.jsonl passes these functions before it supports the sentence "Use
// bridge: …":
//
//	ReadSamples       decodes the line into a cell.Sample
//	groupSamples      puts the sample into the group of its cell and work, as good or bad
//	group.summarize   makes a cell.Summary for each metric of the group
//	Results.sets      puts the values of the group beside its summaries again
//	questions         finds the roles and directions that the run has cells of
//	question.answer   takes the sets with the metric of the goal (table goals)
//	alike             picks one set for each network, all under the same conditions
//	Advice.rank       finds the best median and tests all pairs: the others are Ties or Worse
//	Advice.sentence   says "Use X" if there are no Ties, or else names the networks that
//	                  can't be told apart
//
// Two networks of one run are tested by stats.CompareBlocks (withinRun), two runs by
// stats.Compare (difference). WriteAdvice and package report show the sentence.
//
// # Files
//
//	read.go, open.go, write.go        Results from files; summary.json and summary.csv
//	summarize.go, warnings.go         the summary of each cell
//	sets.go                           summaries with the values behind them, for what follows
//	compare.go, environment.go        two runs
//	versus.go                         one network against its rivals
//	recommend.go, alike.go, sufficient.go, path.go   recommendations
//	comparetable.go, versustext.go, advicetext.go, format.go   the same as text
//	fake_test.go                      runs with a known truth, for tests
//
// # Limits
//
// Compare can't tell a change of the software from a change of the day. It warns where
// the two environments or the baselines differ. Summaries without samples can be
// compared only by their means and standard errors, and not at all in processor time.
//
// # Sources
//
// The statistics and their sources are in package stats.
//
// # Example
//
//	r, err := summary.Read("results")
//	if err != nil {
//		return err
//	}
//	advice := summary.Recommend(r, summary.ForThroughput)
//	return summary.WriteAdvice(os.Stdout, advice, true)
package summary
