package networks

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"cleat/cli/hint"
	"cleat/cli/term"
	"cleat/internal/columns"
	"cleat/network/named"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"
)

func newApply() *cobra.Command {
	plan, prune, asJSON := false, false, false
	cmd := &cobra.Command{
		Use:                   "apply FILE",
		DisableFlagsInUseLine: true,
		Short:                 "make networks as a file describes them",
		Long: `Makes the networks and connections that a YAML file describes: what is missing
is made, what differs is changed. ` + "`cleat net export`" + ` writes such a file.
FILE "-" is standard input. Each change is atomic; after a failed one, the rest
is not tried, and the same command goes on where it stopped.`,
		Example: `  cleat net apply shop.yaml --plan
  cleat net apply shop.yaml --prune`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return hint.With(hint.Usagef("want one file"), "e.g. `cleat net apply shop.yaml`; `cleat net export` writes one")
			}
			w, err := readFile(cmd, args[0])
			if err != nil {
				return fileHint(err)
			}
			cfg, err := config(cmd)
			if err != nil {
				return err
			}
			return apply(cmd, cfg, w, plan, prune, asJSON)
		},
	}
	cmd.Flags().BoolVar(&plan, "plan", false, "print the changes and make none")
	cmd.Flags().BoolVar(&prune, "prune", false, "remove networks and connections that the file does not have")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object for each change")
	return cmd
}

func readFile(cmd *cobra.Command, path string) (*named.Wanted, error) {
	if path != "-" {
		return named.ReadFile(path)
	}
	text, err := io.ReadAll(cmd.InOrStdin())
	if err != nil {
		return nil, err
	}
	return named.ParseFile("standard input", text)
}

// fileHint makes mistakes in a file usage errors, with hints.
func fileHint(err error) error {
	var mistake *named.FileError
	switch {
	case errors.As(err, &mistake) && len(mistake.Known) > 0:
		return hint.With(hint.Usage(err), hint.DidYouMean(mistake.Word, mistake.Known))
	case errors.As(err, &mistake) && mistake.Use != "":
		return hint.With(hint.Usage(err), "use "+mistake.Use)
	case errors.As(err, &mistake):
		return hint.Usage(err)
	case errors.Is(err, os.ErrNotExist):
		return hint.Usage(err)
	}
	return err
}

func apply(cmd *cobra.Command, cfg named.Config, w *named.Wanted, plan, prune, asJSON bool) error {
	changes, err := named.Plan(cmd.Context(), cfg, w, prune)
	if err != nil {
		return WithHint(err)
	}
	out := cmd.OutOrStdout()
	show := func(c named.PlannedChange) {
		if asJSON {
			_ = term.WriteJSONLine(out, c)
			return
		}
		fmt.Fprintln(out, columns.Plain(c.Text))
	}
	if plan {
		for _, c := range changes {
			show(c)
		}
	}
	if len(changes) == 0 && !asJSON {
		fmt.Fprintln(out, "nothing to change")
	}
	if plan || len(changes) == 0 {
		return nil
	}
	if err := named.Apply(cmd.Context(), cfg, changes, show); err != nil {
		return WithHint(err)
	}
	got := &named.Result{}
	startKeeper(cmd.Context(), cfg, got)
	noteBoot(cfg, got)
	return printNotes(cmd.ErrOrStderr(), got.Notes)
}

func newExport() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:                   "export",
		DisableFlagsInUseLine: true,
		Short:                 "print all networks as a file for apply",
		Long:                  `Prints all networks and who is on them, as a YAML file for ` + "`cleat net apply`" + `.`,
		Example:               `  cleat net export > shop.yaml`,
		Args:                  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config(cmd)
			if err != nil {
				return err
			}
			f, err := named.Export(cfg)
			if err != nil {
				return WithHint(err)
			}
			if asJSON {
				return term.WriteJSONLine(cmd.OutOrStdout(), f)
			}
			text, err := yaml.Marshal(f)
			if err != nil {
				return fmt.Errorf("encode networks: %w", err)
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

func newCheck() *cobra.Command {
	repair, asJSON := false, false
	cmd := &cobra.Command{
		Use:                   "check",
		DisableFlagsInUseLine: true,
		Short:                 "compare what is wanted with what the kernel has",
		Long: `Compares networks and connections with the kernel's devices, addresses, rules
and links, and lists each difference. The exit code is 1 if there is one that
--repair has not removed.`,
		Example: `  cleat net check
  cleat net check --repair`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config(cmd)
			if err != nil {
				return err
			}
			if repair {
				notes, err := named.RepairAll(cmd.Context(), cfg)
				if err = errors.Join(err, printNotes(cmd.ErrOrStderr(), notes)); err != nil {
					return WithHint(err)
				}
			}
			found, err := named.Check(cmd.Context(), cfg)
			if err != nil {
				return WithHint(err)
			}
			return printDifferences(cmd.OutOrStdout(), found, repair, asJSON)
		},
	}
	cmd.Flags().BoolVar(&repair, "repair", false, "put right what differs")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	return cmd
}

func printDifferences(out io.Writer, found []named.Difference, repaired, asJSON bool) error {
	if asJSON {
		if err := term.WriteJSONLine(out, term.OrEmpty(found)); err != nil {
			return err
		}
	} else {
		for _, d := range found {
			fmt.Fprintln(out, columns.Plain(d.String()))
		}
	}
	switch {
	case len(found) == 0 && !asJSON:
		_, err := fmt.Fprintln(out, "all networks are as they should be")
		return err
	case len(found) == 0:
		return nil
	case repaired || !slices.ContainsFunc(found, func(d named.Difference) bool { return d.Remedy == "" }):
		return fmt.Errorf("%s can't be repaired", columns.Plural(len(found), "difference"))
	}
	return hint.With(fmt.Errorf("%s found", columns.Plural(len(found), "difference")), "`cleat net check --repair` puts them right")
}

func newPrune() *cobra.Command {
	all, plan, asJSON := false, false, false
	cmd := &cobra.Command{
		Use:                   "prune",
		DisableFlagsInUseLine: true,
		Short:                 "disconnect containers that no longer exist",
		Long: `Disconnects containers that no longer exist, so that their addresses, names and
ports are free. Stopped containers stay connected.`,
		Example: `  cleat net prune --plan
  cleat net prune --all`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config(cmd)
			if err != nil {
				return err
			}
			removed, err := named.Prune(cmd.Context(), cfg, all, plan)
			if asJSON {
				return WithHint(errors.Join(term.WriteJSONLine(cmd.OutOrStdout(), term.OrEmpty(removed)), err))
			}
			for _, text := range removed {
				fmt.Fprintln(cmd.OutOrStdout(), columns.Plain(text))
			}
			return WithHint(err)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "remove networks without containers as well")
	cmd.Flags().BoolVar(&plan, "plan", false, "print what would be removed and remove nothing")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	return cmd
}
