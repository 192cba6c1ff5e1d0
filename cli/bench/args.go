package bench

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"cleat/bench/experiment"
	"cleat/cli/complete"
	"cleat/cli/hint"
	"cleat/internal/program"
	"cleat/internal/spell"
	"cleat/traffic"

	"github.com/spf13/cobra"
)

// oneExperiment is the Args function of `cleat bench`. Several words are most likely a
// mistyped command.
func oneExperiment(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return hint.With(hint.Usagef("%s: no experiment given", cmd.CommandPath()),
			fmt.Sprintf("give a preset (%s) or a YAML file, as in: cleat bench quick", strings.Join(experiment.PresetNames(), ", ")))
	}
	if len(args) > 1 && !slices.Contains(experiment.PresetNames(), args[0]) {
		if n := spell.Nearest(args[0], hint.CommandNames(cmd)); n != "" {
			return hint.With(hint.Usagef("unknown command %q for %q", args[0], cmd.CommandPath()), fmt.Sprintf("did you mean %q?", n))
		}
	}
	return cobra.ExactArgs(1)(cmd, args)
}

// loadError explains why no experiment could be loaded for an argument.
func loadError(cmd *cobra.Command, preset string, err error) error {
	var wrong *experiment.Error
	info, statErr := os.Stat(preset)
	there := statErr == nil
	switch {
	case there && info.IsDir():
		return hint.With(hint.Usagef("%q is a directory, not an experiment", preset),
			fmt.Sprintf("give a preset (%s) or a YAML file; for results: cleat bench report %s", strings.Join(experiment.PresetNames(), ", "), preset))
	case errors.As(err, &wrong) && wrong.File == "" && there:
		return hint.With(hint.Usagef("unknown preset %q", preset), "to read the file of this name, give it as ./"+preset)
	case errors.As(err, &wrong) && wrong.File == "":
		known := slices.Concat(experiment.PresetNames(), hint.CommandNames(cmd))
		return hint.With(hint.Usagef("unknown preset or command %q", preset), hint.DidYouMean(preset, known))
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return hint.Usage(err)
	}
	return err
}

// findEngines looks for the programs of other traffic generators before anything starts.
func findEngines(e experiment.Experiment) error {
	for _, g := range e.Groups {
		for _, engine := range g.Engine {
			if engine == string(traffic.EngineCleat) {
				continue
			}
			if _, err := program.Find(engine); err != nil {
				return hint.With(hint.Usagef("--engine %s: %w", engine, traffic.ErrNoProgram),
					fmt.Sprintf("install the Debian package %s, or measure with --engine %s", engine, traffic.EngineCleat))
			}
		}
	}
	return nil
}

// mostNumbers bounds the numbers in one range.
const mostNumbers = 1024

// addNumbers returns a function that adds whole numbers and ranges, separated by commas, to a
// list.
func addNumbers(list *[]int) func(text string) error {
	return func(text string) error {
		for word := range strings.SplitSeq(text, ",") {
			from, to, isRange := strings.Cut(strings.TrimSpace(word), "..")
			if !isRange {
				to = from
			}
			first, err1 := strconv.Atoi(from)
			last, err2 := strconv.Atoi(to)
			if err1 != nil || err2 != nil {
				return errors.New("want whole numbers, separated by commas")
			}
			if first > last || last-first >= mostNumbers {
				return fmt.Errorf("range %s: want the smaller number first, and at most %d numbers", word, mostNumbers)
			}
			for v := first; v <= last; v++ {
				*list = append(*list, v)
			}
		}
		return nil
	}
}

// addFactor returns a function that adds a factor and its levels, which are checked with the
// experiment.
func addFactor(factors *map[string][]string) func(text string) error {
	return func(text string) error {
		name, levels, ok := strings.Cut(text, "=")
		if !ok || name == "" || levels == "" {
			return errors.New("want NAME=LEVEL,LEVEL, e.g. variant=plain,loss")
		}
		if *factors == nil {
			*factors = map[string][]string{}
		}
		(*factors)[name] = strings.Split(levels, ",")
		return nil
	}
}

func completePresets(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return experiment.PresetNames(), cobra.ShellCompDirectiveDefault
}

// completeOnly completes axes and, after "=" or "|", the levels in the experiment named
// on the command line, or else in the first preset.
func completeOnly(cmd *cobra.Command) {
	complete.Flag(cmd, "only", func(_ *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		e, err := experiment.Load(append(args, experiment.PresetNames()[0])[0])
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		start := strings.LastIndex(typed, ",") + 1
		axis, levels, named := strings.Cut(typed[start:], "=")
		var offers []string
		for name, known := range e.Axes() {
			if !named {
				offers = append(offers, typed[:start]+name+"=")
				continue
			}
			before := typed[:start] + axis + "=" + levels[:strings.LastIndex(levels, "|")+1]
			for _, level := range known {
				if name == axis {
					offers = append(offers, before+level)
				}
			}
		}
		offers = slices.DeleteFunc(offers, func(o string) bool { return !strings.HasPrefix(o, typed) })
		slices.Sort(offers)
		return offers, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	})
}
