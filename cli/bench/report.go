package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	benchreport "cleat/bench/report"
	"cleat/bench/summary"
	"cleat/cli/hint"
	"cleat/cli/term"
	"cleat/internal/atomicfile"
	"cleat/internal/columns"
	"cleat/internal/program"

	"github.com/spf13/cobra"
)

const reportFile = "report.html"

type reportFlags struct {
	open     string
	json     bool
	markdown bool
}

func newReport() *cobra.Command {
	var f reportFlags
	cmd := &cobra.Command{
		Use:   "report DIR",
		Short: "rewrite the report of a run from its samples",
		Long: `Reads samples.jsonl and environment.json in the result directory DIR, rewrites
report.html, summary.json and summary.csv, and prints the table and the
recommendation. The same samples give the same bytes, so the three files can be
deleted without loss, and a run that was killed still gets a report.`,
		Example: "  cleat bench report cleat-bench-quick-20260102-030405\n  cleat bench report before --open yes",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd.Context(), cmd.OutOrStdout(), args[0])
		},
	}
	cmd.Flags().StringVar(&f.open, "open", "no", "open report.html in a browser: `yes|no`")
	cmd.Flags().BoolVar(&f.json, "json", false, "print summary.json instead of the table")
	cmd.Flags().BoolVar(&f.markdown, "markdown", false, "print a Markdown table that compares the experiment's subject with the others")
	cmd.MarkFlagsMutuallyExclusive("json", "markdown")
	return cmd
}

func (f reportFlags) run(ctx context.Context, w io.Writer, dir string) error {
	if words := []string{"yes", "no"}; !slices.Contains(words, f.open) {
		return hint.With(hint.Usagef("--open %q: want yes or no", f.open), hint.DidYouMean(f.open, words))
	}
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return hint.With(hint.Usagef("%q is not a directory", dir), "give the result directory itself: "+filepath.Dir(dir))
	}
	results, err := readResults(dir)
	if err != nil {
		return err
	}
	if err := rewrite(dir, results); err != nil {
		return err
	}
	switch {
	case f.json:
		err = summary.WriteJSON(columns.JSON(w), results.Summaries)
	case f.markdown:
		err = printMarkdown(w, dir, results)
	default:
		err = printConclusion(w, dir, results)
	}
	if err == nil && f.open == "yes" {
		err = browse(ctx, filepath.Join(dir, reportFile))
	}
	return err
}

// rewrite writes all files derived from the results to dir, each atomically: a reader
// sees the old file or the new one.
func rewrite(dir string, results summary.Results) error {
	if err := summary.Write(dir, results.Summaries); err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, reportFile), func(w io.Writer) error { return benchreport.HTML(w, benchreport.FromResults(results)) })
}

// printMarkdown prints the comparison of an experiment's subject with the others.
func printMarkdown(w io.Writer, dir string, results summary.Results) error {
	versus := benchreport.FromResults(results).Versus
	if versus == nil {
		return hint.With(hint.Usagef("%s: the experiment has no subject, or no results for it", dir), "--markdown is for presets and files with a subject, such as `cleat bench rootless`")
	}
	return versus.Markdown(columns.Text(w))
}

// printConclusion prints the end of a run: the table, the recommendation, and the path of
// the report.
func printConclusion(w io.Writer, dir string, results summary.Results) error {
	var err error
	if zoo := summary.ZooOf(results); zoo != nil { // its cells are many; the report has them
		err = zoo.Table(columns.Text(w))
	} else {
		err = benchreport.Terminal(term.Of(w)).Table(w, benchreport.FromResults(results))
	}
	if err != nil {
		return err
	}
	if advice := summary.Recommend(results); len(advice) > 0 || !overLinks(results) {
		fmt.Fprintln(w)
		if err := summary.WriteAdvice(columns.Text(w), advice, true); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(w, "\nreport: %s\n", filepath.Join(dir, reportFile))
	return err
}

// overLinks reports whether networks over several links were measured, none of which is
// recommended.
func overLinks(results summary.Results) bool {
	return slices.ContainsFunc(results.Summaries, func(s cell.Summary) bool { return catalog.RoleOf(s.Network) == catalog.Multipath })
}

// browse opens a file with the desktop's program for it.
func browse(ctx context.Context, path string) error {
	err := program.CommandContext(ctx, "xdg-open", path).Run()
	if errors.Is(err, exec.ErrNotFound) {
		return hint.With(fmt.Errorf("open %q: %w", path, err), "open it in a browser by hand, or install xdg-utils")
	}
	if err != nil {
		return fmt.Errorf("open %q: %w", path, err)
	}
	return nil
}
