package bench

import (
	"fmt"
	"io"
	"slices"

	"cleat/bench/summary"
	"cleat/cli/complete"
	"cleat/cli/hint"
	"cleat/cli/term"
	"cleat/internal/columns"

	"github.com/spf13/cobra"
)

type recommendFlags struct {
	goal string
	json bool
}

// NewRecommend returns the command recommend.
func NewRecommend() *cobra.Command {
	var f recommendFlags
	cmd := &cobra.Command{
		Use:   "recommend DIR",
		Short: "recommend a network, with the reasons",
		Long: `Reads the results of a run and recommends a network for each role that was
measured (container to container, to the outside, across hosts, without root,
…). With --for it gives the reasons: the numbers, the runners-up that can't be
told apart, what does not work with the network, what was not available and
what would supply it, and how far the numbers can be trusted.

DIR is a result directory, or its samples.jsonl, summary.json or summary.csv.
Networks that can't be told apart (p at least 0.05, corrected by Holm's method
over all pairs) are never ranked. Nothing is recommended from too few or
disturbed samples. Latency under load decides before that of idle networks,
where it was measured.`,
		Example: `  cleat recommend cleat-bench-quick-20260102-030405
  cleat recommend --for latency before
  cleat recommend --for cpu --json before`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd.OutOrStdout(), cmd.ErrOrStderr(), args[0])
		},
	}
	cmd.Flags().StringVar(&f.goal, "for", "", "give the reasons for `GOAL`: throughput, latency, connections or cpu (default: all, without reasons)")
	cmd.Flags().BoolVar(&f.json, "json", false, "print JSON")
	complete.Words(cmd, "for", words(summary.Goals())...)
	return cmd
}

func (f recommendFlags) run(w, notes io.Writer, path string) error {
	var goals []summary.Goal
	if f.goal != "" {
		if known := words(summary.Goals()); !slices.Contains(known, f.goal) {
			return hint.With(hint.Usagef("--for %q: no such goal", f.goal), hint.DidYouMean(f.goal, known))
		}
		goals = append(goals, summary.Goal(f.goal))
	}
	results, err := readResults(path)
	if err != nil {
		return err
	}
	advice := summary.Recommend(results, goals...)
	if f.json {
		return term.WriteJSON(w, advice)
	}
	for _, n := range results.Notes {
		fmt.Fprintf(notes, "cleat: note: %s\n", columns.Plain(n))
	}
	return summary.WriteAdvice(columns.Text(w), advice, len(goals) == 0)
}
