package graph

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"cleat/cli/container"
	"cleat/cli/hint"
	"cleat/cli/term"
	"cleat/internal/columns"
	"cleat/internal/spell"
	"cleat/netns/find"
	"cleat/network/graph"
	"cleat/network/survey"

	"github.com/spf13/cobra"
)

// flags are the flags of `cleat graph`.
type flags struct {
	json bool
	svg  string
	all  bool
}

func New() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "graph [NAME…]",
		Short: "draw what is wired to what on this host",
		Long: `Draws all network namespaces: what runs there, their links and addresses,
bridges with their ports, who is whose peer, on what macvlan, VLAN and tunnel
devices stand, and what was dropped. The host comes first. Nothing is changed.
An address after → is that of the other end.

With NAME, only those namespaces: containers by name or identifier ("podman:web"
where several engines have one), names of ` + "`ip netns`" + `, process ids, or paths;
"host" is the host. A peer's name, "web/eth0", will do, too.

Left out, but for --all, are loopback, addresses and qdiscs that every link has,
MAC addresses, devices that the kernel makes by itself, and namespaces that only
a descriptor holds and nothing is wired to.

Without root it draws the network that it is in itself, and says of the others
what it could not read. Inside ` + "`podman unshare`" + ` it draws what is Podman's.`,
		Example: `  sudo cleat graph
  sudo cleat graph host web
  sudo cleat graph --svg wiring.svg
  sudo cleat graph --json | jq -r '.namespaces[].label'`,
		ValidArgsFunction: completeLabels,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd, args)
		},
	}
	cmd.Flags().BoolVar(&f.json, "json", false, "print JSON")
	cmd.Flags().StringVar(&f.svg, "svg", "", "write an SVG picture to `FILE` (- is standard output)")
	cmd.Flags().BoolVar(&f.all, "all", false, "draw what is left out otherwise")
	cmd.MarkFlagsMutuallyExclusive("json", "svg")
	if err := cmd.MarkFlagFilename("svg", "svg"); err != nil {
		panic(err) // the flag was just defined
	}
	return cmd
}

func (f flags) run(cmd *cobra.Command, args []string) error {
	if cmd.Flags().Changed("svg") && f.svg == "" {
		return hint.With(hint.Usagef("--svg: no file given"), "cleat graph --svg wiring.svg")
	}
	if err := f.writable(); err != nil {
		return err
	}
	s, err := survey.Take(cmd.Context(), survey.Config{SearchDescriptors: f.all, Names: container.Names(cmd.Context())})
	if err != nil {
		return err
	}
	opt := graph.Options{All: f.all}
	if opt.Only, err = pickNamespaces(cmd.Context(), s, args); err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	switch {
	case f.json:
		if opt.Only != nil {
			s.Namespaces = slices.DeleteFunc(s.Namespaces, func(n survey.Namespace) bool { return !opt.Only[n.ID] })
		}
		return term.WriteJSON(out, s)
	case f.svg == "-":
		return graph.SVG(out, s, opt)
	case f.svg != "":
		return writeGraph(f.svg, s, opt)
	}
	return graph.Text(out, s, opt, graph.Terminal(term.Of(out)))
}

// writable says what is in the way of the file before all namespaces are looked at.
func (f flags) writable() error {
	if f.svg == "" || f.svg == "-" {
		return nil
	}
	dir := filepath.Dir(f.svg)
	switch info, err := os.Stat(dir); {
	case errors.Is(err, fs.ErrNotExist):
		return hint.With(hint.Usagef("--svg %s: there is no directory %s", f.svg, dir), "mkdir -p "+columns.Word(dir))
	case err == nil && !info.IsDir(), errors.Is(err, syscall.ENOTDIR):
		return hint.Usagef("--svg %s: %s is not a directory", f.svg, dir)
	case err != nil:
		return fmt.Errorf("write %q: %w", f.svg, err)
	}
	if info, err := os.Stat(f.svg); err == nil && !info.Mode().IsRegular() {
		return hint.With(hint.Usagef("--svg %s: not a file", f.svg), "--svg - writes to standard output")
	}
	return nil
}

// writeGraph writes a file at once: a reader sees the old one or the new one.
func writeGraph(path string, s *survey.Survey, opt graph.Options) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		if failed := (*fs.PathError)(nil); errors.As(err, &failed) {
			err = failed.Err // its name is nobody's
		}
		return hint.With(fmt.Errorf("write %q: %w", path, err), "--svg - writes to standard output")
	}
	err = errors.Join(graph.SVG(f, s, opt), f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("write %q: %w", path, err)
	}
	return nil
}

// pickNamespaces are those that args name; nil for all.
func pickNamespaces(ctx context.Context, s *survey.Survey, args []string) (map[uint64]bool, error) {
	if len(args) == 0 {
		return nil, nil
	}
	only := map[uint64]bool{}
	for _, a := range args {
		all := s.Find(a)
		if len(all) == 0 {
			var err error
			if all, err = namespaceAt(ctx, s, a); err != nil {
				return nil, err
			}
		}
		switch len(all) {
		case 0:
			return nil, hint.With(hint.Usagef("no network namespace is called %q", a), didYouMeanNamespace(a, s))
		case 1:
			only[all[0].ID] = true
		default:
			var labels []string
			for _, n := range all {
				labels = append(labels, columns.Word(n.Label))
			}
			return nil, hint.With(hint.Usagef("%q is the name of %d network namespaces", a, len(all)), "say which: "+strings.Join(labels, ", "))
		}
	}
	return only, nil
}

// namespaceAt is the namespace of what a person calls as for `cleat attach`: of a
// process that is not the first there, at a path, of an engine's container. nil: of
// nothing.
func namespaceAt(ctx context.Context, s *survey.Survey, ref string) ([]*survey.Namespace, error) {
	c, ns, err := container.Find(ctx, ref)
	if errors.As(err, new(*find.Ambiguous)) || errors.As(err, new(*find.NotRunning)) {
		return nil, err
	}
	if err != nil {
		return nil, nil
	}
	defer ns.Close()
	id, err := ns.ID()
	if err != nil {
		return nil, fmt.Errorf("draw %s: %w", c.Ref, err)
	}
	if n := s.ByID(id); n != nil {
		return []*survey.Namespace{n}, nil
	}
	return nil, nil
}

// didYouMeanNamespace names the nearest label, or the first few.
func didYouMeanNamespace(word string, s *survey.Survey) string {
	labels := labels(s)
	if n := spell.Nearest(word, labels); n != "" {
		return fmt.Sprintf("did you mean %q?", n)
	}
	const most = 10
	if len(labels) > most {
		return "`cleat graph` draws them all; some are: " + strings.Join(labels[:most], ", ")
	}
	return "known: " + strings.Join(labels, ", ")
}

// labels are the labels that can be typed: they are whatever somebody made
// them.
func labels(s *survey.Survey) []string {
	var out []string
	for _, n := range s.Namespaces {
		if n.Label == columns.Word(n.Label) {
			out = append(out, n.Label)
		}
	}
	return out
}

// completeLabels offers the labels of what is there.
func completeLabels(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	s, err := survey.Take(cmd.Context(), survey.Config{Names: container.Names(cmd.Context())})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return slices.DeleteFunc(labels(s), func(l string) bool { return slices.Contains(args, l) }), cobra.ShellCompDirectiveNoFileComp
}
