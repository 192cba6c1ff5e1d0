package graph

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"cleat/cli/container"
	"cleat/cli/hint"
	"cleat/cli/term"
	"cleat/internal/atomicfile"
	"cleat/internal/columns"
	"cleat/internal/spell"
	"cleat/netns/find"
	"cleat/network/graph"
	"cleat/network/survey"

	"github.com/spf13/cobra"
)

type flags struct {
	json bool
	svg  string
	all  bool
}

// New returns the command graph.
func New() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "graph [NAME…]",
		Short: "draw what is wired to what on this host",
		Long: `Draws all network namespaces of the host: what runs in them, links, addresses,
bridges with their ports, peers, the parents of macvlan, VLAN and tunnel
devices, and dropped packets. The host's own namespace comes first. An address
after → is the peer's. Nothing is changed.

Networks of ` + "`cleat net`" + ` follow, with their containers, published ports and
rules.

NAME selects namespaces: the name or id of a container ("podman:web" if several
engines have the name), a name that ` + "`ip netns`" + ` lists, a process id, a path, or
"host". A link such as "web/eth0" selects the namespace of its peer.

Without --all, the drawing omits loopback devices, addresses and qdiscs that
every link has, MAC addresses, devices that the kernel creates by itself, and
unconnected namespaces that only a file descriptor keeps alive.

Without root, it draws its own namespace and lists what it could not read. Run
it in ` + "`podman unshare`" + ` to draw the networks of rootless Podman.`,
		Example: `  sudo cleat graph
  sudo cleat graph host web
  sudo cleat graph --svg wiring.svg
  sudo cleat graph --json | jq -r '.namespaces[].label'`,
		ValidArgsFunction: completeLabels,
		RunE:              func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	cmd.Flags().BoolVar(&f.json, "json", false, "print JSON")
	cmd.Flags().StringVar(&f.svg, "svg", "", "write an SVG picture to `FILE` (- is standard output)")
	cmd.Flags().BoolVar(&f.all, "all", false, "omit nothing")
	cmd.MarkFlagsMutuallyExclusive("json", "svg")
	if err := cmd.MarkFlagFilename("svg", "svg"); err != nil {
		panic(err) // there is no such flag
	}
	return cmd
}

func (f flags) run(cmd *cobra.Command, args []string) error {
	if cmd.Flags().Changed("svg") && f.svg == "" {
		return hint.With(hint.Usagef("--svg: no file given"), "cleat graph --svg wiring.svg")
	}
	if err := f.checkFile(); err != nil {
		return err
	}
	s, err := survey.Take(cmd.Context(), survey.Config{SearchDescriptors: f.all, Names: container.Names(cmd.Context())})
	if err != nil {
		return err
	}
	addNetworks(s)
	opt := graph.Options{All: f.all}
	if opt.Only, err = selectNamespaces(cmd.Context(), s, args); err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	switch {
	case f.json:
		if opt.Only != nil {
			s.Networks = s.NetworksOf(opt.Only)
			s.Namespaces = slices.DeleteFunc(s.Namespaces, func(n survey.Namespace) bool { return !opt.Only[n.ID] })
		}
		return term.WriteJSON(out, s)
	case f.svg == "-":
		return graph.SVG(out, s, opt)
	case f.svg != "":
		err := atomicfile.Write(f.svg, func(w io.Writer) error { return graph.SVG(w, s, opt) })
		return hint.With(err, stdoutHint)
	}
	return graph.Text(out, s, opt, graph.Terminal(term.Of(out)))
}

// checkFile returns an error if the SVG file can't be written, before the survey begins.
func (f flags) checkFile() error {
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
		return hint.With(hint.Usagef("--svg %s: not a regular file", f.svg), stdoutHint)
	}
	return nil
}

const stdoutHint = "--svg - writes to standard output"

// selectNamespaces returns the ids of the namespaces that args name, or nil without args.
func selectNamespaces(ctx context.Context, s *survey.Survey, args []string) (map[uint64]bool, error) {
	if len(args) == 0 {
		return nil, nil
	}
	only := map[uint64]bool{}
	for _, a := range args {
		all := s.Find(a)
		if len(all) == 0 {
			var err error
			if all, err = findNamespace(ctx, s, a); err != nil {
				return nil, err
			}
		}
		switch len(all) {
		case 0:
			return nil, hint.With(hint.Usagef("no network namespace is called %q", a), labelHint(a, s))
		case 1:
			only[all[0].ID] = true
		default:
			var labels []string
			for _, n := range all {
				labels = append(labels, columns.Word(n.Label))
			}
			return nil, hint.With(hint.Usagef("%q is the name of %d network namespaces", a, len(all)), "give one of: "+strings.Join(labels, ", "))
		}
	}
	return only, nil
}

// findNamespace returns the namespace of a CONTAINER argument that is no label of the survey,
// such as a path or the id of a process, or nothing.
func findNamespace(ctx context.Context, s *survey.Survey, ref string) ([]*survey.Namespace, error) {
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

// labelHint suggests the label nearest to word, or lists the first few.
func labelHint(word string, s *survey.Survey) string {
	const most = 10
	known := labels(s)
	if spell.Nearest(word, known) == "" && len(known) > most {
		return "`cleat graph` draws all; some are: " + strings.Join(known[:most], ", ")
	}
	return hint.DidYouMean(word, known)
}

// labels returns the labels that can be pasted into a shell.
func labels(s *survey.Survey) []string {
	var all []string
	for _, n := range s.Namespaces {
		all = append(all, n.Label)
	}
	return container.Pasteable(all)
}

// completeLabels completes the labels that are not among args yet.
func completeLabels(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	s, err := survey.Take(cmd.Context(), survey.Config{Names: container.Names(cmd.Context())})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return slices.DeleteFunc(labels(s), func(l string) bool { return slices.Contains(args, l) }), cobra.ShellCompDirectiveNoFileComp
}
