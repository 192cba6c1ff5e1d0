package bench

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"cleat/bench/cell"
	"cleat/bench/summary"
	"cleat/cli/complete"
	"cleat/cli/exit"
	"cleat/cli/help"
	"cleat/cli/hint"
	"cleat/cli/term"
	"cleat/internal/columns"

	"github.com/spf13/cobra"
)

type compareFlags struct {
	threshold string
	metrics   []string
	json      bool
}

func newCompare() *cobra.Command {
	var f compareFlags
	cmd := &cobra.Command{
		Use:   "compare BASE NEW",
		Short: "compare two runs; exit 3 if something became slower",
		Long: `Compares two runs: each network under the same settings, in one row. BASE and
NEW are result directories, or their samples.jsonl, summary.json or summary.csv.
A difference is shown only if it is significant (p < 0.05, Mann-Whitney,
corrected by Holm's method over all rows); otherwise the row has a ~. If it is
worse by more than the threshold, with the whole 95 % interval of the ratio, it
has regressed, and the exit code is 3. So has a network that the new run tried
and could not measure. What the new run was not asked for is "not measured".
Higher is better for rates, lower for latency, loss and time. Runs without a
common row can't be compared: the exit code is 1.

Two runs also differ by the day: compare runs of one machine in one state. If
environments or baselines differ, a warning says so. If all baselines became
worse by more than the threshold, the machine changed: then networks regress
only if they are that much worse than the baselines.`,
		Example: `  cleat bench compare before after
  cleat bench compare before after --metric throughput --threshold 10%
  cleat bench compare before/summary.json after --json`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd.OutOrStdout(), args[0], args[1])
		},
	}
	cmd.Flags().StringVar(&f.threshold, "threshold", "5%", "a value that is `PERCENT` worse is a regression")
	cmd.Flags().StringSliceVar(&f.metrics, "metric", nil, "compare only the metrics of `LIST`, separated by commas (default: all)")
	cmd.Flags().BoolVar(&f.json, "json", false, "print JSON")
	complete.List(cmd, "metric", words(cell.Metrics()))
	help.Status(cmd, "3", "something became slower by more than --threshold, or no longer works")
	return cmd
}

func (f compareFlags) run(w io.Writer, base, other string) error {
	options, err := f.options()
	if err != nil {
		return err
	}
	olds, err := readResults(base)
	if err != nil {
		return err
	}
	news, err := readResults(other)
	if err != nil {
		return err
	}
	c := summary.Compare(olds, news, options)
	if err := c.Comparable(); err != nil {
		return hint.With(fmt.Errorf("compare %s with %s: %w", base, other, err), "compare two runs of the same experiment")
	}
	if f.json {
		err = term.WriteJSON(w, c)
	} else {
		err = c.Table(columns.Text(w))
	}
	if err == nil && c.Regressed() {
		err = exit.ErrRegression
	}
	return err
}

// options checks the flags.
func (f compareFlags) options() (summary.CompareOptions, error) {
	var o summary.CompareOptions
	percent, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(f.threshold, "%")), 64)
	if err != nil || !(percent >= 0 && percent <= 1000) {
		return o, hint.With(hint.Usagef("--threshold %q: want a percentage from 0%% to 1000%%", f.threshold), "e.g. --threshold 5%")
	}
	o.Threshold = percent / 100
	known := words(cell.Metrics())
	for _, name := range f.metrics {
		if !slices.Contains(known, name) {
			return o, hint.With(hint.Usagef("--metric %q: no such metric", name), hint.DidYouMean(name, known))
		}
		o.Metrics = append(o.Metrics, cell.Metric(name))
	}
	return o, nil
}

// words returns values that are named by their text.
func words[T ~string](values []T) []string {
	var all []string
	for _, v := range values {
		all = append(all, string(v))
	}
	return all
}

// readResults reads results. If there are none, the hint says how to get some.
func readResults(path string) (summary.Results, error) {
	r, err := summary.Read(path)
	if errors.Is(err, summary.ErrNoResults) {
		err = hint.With(err, "`cleat bench quick --out DIR` makes a result directory")
	}
	return r, err
}
