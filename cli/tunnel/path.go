package tunnel

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"cleat/cli/complete"
	"cleat/cli/hint"
	"cleat/internal/rate"
	"cleat/tunnel/control"
	"cleat/tunnel/spec"

	"github.com/spf13/cobra"
)

// pathFlags are the flags that all commands of `cleat tunnel path` share.
type pathFlags struct{ tunnel string }

func newPathCmd() *cobra.Command {
	f := &pathFlags{}
	cmd := &cobra.Command{
		Use:   "path COMMAND",
		Short: "change the paths of a running tunnel",
		Long: `Changes the paths of a running tunnel. What a path has not delivered when it is
disabled or removed is sent again on the others, so nothing is lost. The file is
not changed, so reloading it reverts the changes.`,
		Example: `  cleat tunnel path down lte
  cleat tunnel path up lte --tunnel office
  cleat tunnel path add sat --device eth2 --remote 198.51.100.2
  cleat tunnel path remove sat`,
		Args: hint.NoCommand,
		RunE: hint.NoCommand,
	}
	cmd.PersistentFlags().StringVar(&f.tunnel, "tunnel", "", "`NAME` of the tunnel, if several are running")
	complete.Flag(cmd, "tunnel", func(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		return completeRunning(cmd, nil, typed)
	})
	cmd.AddCommand(f.addCmd(),
		f.changeCmd("up", "enable a path", `Enables a path. Its socket is reopened, and it is used once packets get through.`, func(ctx context.Context, c *control.Client, name string) error { return c.SetPath(ctx, name, true) }),
		f.changeCmd("down", "disable a path", `Disables a path until "cleat tunnel path up".`,
			func(ctx context.Context, c *control.Client, name string) error { return c.SetPath(ctx, name, false) }),
		f.changeCmd("remove", "remove a path", `Removes a path from the tunnel.`,
			func(ctx context.Context, c *control.Client, name string) error { return c.RemovePath(ctx, name) }))
	return cmd
}

// with connects to the tunnel and calls do.
func (f *pathFlags) with(cmd *cobra.Command, do func(*control.Client) error) error {
	how := func(name string) string { return cmd.CommandPath() + " --tunnel " + name + " …" }
	return withRunning(cmd.Context(), f.tunnel, how, do)
}

// changeCmd returns a command that changes an existing path.
func (f *pathFlags) changeCmd(name, short, long string, change func(context.Context, *control.Client, string) error) *cobra.Command {
	return &cobra.Command{
		Use:               name + " NAME",
		Short:             short,
		Long:              long,
		Example:           fmt.Sprintf("  cleat tunnel path %s lte\n  cleat tunnel path %s lte --tunnel office", name, name),
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: f.completePaths,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.with(cmd, func(c *control.Client) error {
				err := change(cmd.Context(), c, args[0])
				var e *control.Error
				if errors.As(err, &e) && e.Status == http.StatusNotFound && e.Hint == "" {
					return hint.With(hint.Usage(err), hint.DidYouMean(args[0], pathNames(cmd.Context(), c)))
				}
				return err
			})
		},
	}
}

// pathNames returns the names of a tunnel's paths, or none if the tunnel does not answer.
func pathNames(ctx context.Context, c *control.Client) []string {
	s, err := c.Status(ctx)
	if err != nil {
		return nil
	}
	var names []string
	for _, p := range s.Paths {
		names = append(names, p.Name)
	}
	return names
}

func (f *pathFlags) completePaths(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	err := f.with(cmd, func(c *control.Client) error {
		s, err := c.Status(cmd.Context())
		for _, p := range s.Paths {
			names = append(names, cobra.CompletionWithDesc(p.Name, string(p.State)))
		}
		return err
	})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// newPath holds the flags of `cleat tunnel path add`.
type newPath struct {
	device, local, remote, rate string
	port                        uint16
	weight, mtu                 int
	metered                     bool
}

func (f *pathFlags) addCmd() *cobra.Command {
	var p newPath
	cmd := &cobra.Command{
		Use:   "add NAME",
		Short: "add a path",
		Long: `Adds a path to a running tunnel. The path is used once packets get through. A
path with a device that does not exist yet waits for it. Without --remote, the
path waits for the other end's path of the same name and learns its address;
that takes a tunnel with keys.`,
		Example: `  cleat tunnel path add sat --device eth2 --remote 198.51.100.2
  cleat tunnel path add sat
  cleat tunnel path add sat --local 192.0.2.9 \
    --remote 198.51.100.2:4755 --rate 50M`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := p.path(args[0])
			if err != nil {
				return err
			}
			return f.with(cmd, func(c *control.Client) error { return inFlags(c.AddPath(cmd.Context(), path)) })
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&p.device, "device", "", "bind the path to the device `NAME`")
	flags.StringVar(&p.local, "local", "", "local `ADDRESS` (default: the device's)")
	flags.StringVar(&p.remote, "remote", "", "`ADDRESS[:PORT]` of the other end (default: learned from its packets)")
	flags.Uint16Var(&p.port, "port", 0, "local UDP `PORT` (default: the tunnel's)")
	flags.StringVar(&p.rate, "rate", "", "send at most `RATE` bit/s, e.g. 50M (default: no limit)")
	flags.IntVar(&p.weight, "weight", 1, "give the path a share of `NUMBER`, 1…10000, with the scheduler weighted")
	flags.IntVar(&p.mtu, "mtu", 0, "send packets of up to `BYTES`, with headers (default: the device's MTU)")
	flags.BoolVar(&p.metered, "metered", false, "every byte of the path costs money: measure it by data only")
	for name, completion := range map[string]cobra.CompletionFunc{
		"device": complete.Devices, "local": cobra.NoFileCompletions, "remote": cobra.NoFileCompletions, "rate": cobra.NoFileCompletions,
	} {
		complete.Flag(cmd, name, completion)
	}
	return cmd
}

// inFlags replaces keys of a tunnel file in the hint of an error by flags.
func inFlags(err error) error {
	var e *control.Error
	if errors.As(err, &e) {
		e.Hint = strings.NewReplacer("`device:`", "`--device DEVICE`", "device: ", "--device ", "`remote:`", "--remote ADDRESS").Replace(e.Hint)
	}
	return err
}

// path returns the path that the flags describe. The running tunnel checks the rest.
func (n newPath) path(name string) (spec.Path, error) {
	p := spec.Path{Name: name, Device: n.device, LocalPort: n.port, Weight: n.weight, MTUBytes: n.mtu, Metered: n.metered}
	var err error
	switch {
	case n.remote != "" && n.device == "" && n.local == "":
		return p, hint.With(hint.Usagef("a path needs --device or --local"), "e.g. --device eth0")
	case n.weight < 1:
		return p, hint.Usagef("--weight %d: want 1…%d", n.weight, spec.MaxWeight)
	}
	if n.remote != "" {
		if p.Remote, err = control.ParseRemote(n.remote); err != nil {
			return p, hint.Usagef("--%w", err)
		}
	}
	if n.local != "" {
		if p.Local, err = netip.ParseAddr(n.local); err != nil {
			return p, hint.With(hint.Usagef("--local %q: want an IP address", n.local), "set the local port with --port")
		}
	}
	if n.rate != "" {
		bits, err := rate.Parse(n.rate)
		if err != nil {
			return p, hint.Usagef("--%w", err)
		}
		if bits < spec.MinRate || bits > spec.MaxRate {
			return p, hint.Usagef("--rate %q: want 64K…1000T bit/s", n.rate)
		}
		p.RateBitsPerSec = int64(bits)
	}
	return p, nil
}
