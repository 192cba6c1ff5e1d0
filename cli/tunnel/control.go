package tunnel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"cleat/cli/hint"
	"cleat/cli/term"
	"cleat/internal/columns"
	"cleat/tunnel/control"

	"github.com/spf13/cobra"
)

// withRunning connects to the running tunnel called name, or, if name is "", to the only
// running one, and calls do. how returns a command line with a name, for a hint.
func withRunning(ctx context.Context, name string, how func(name string) string, do func(*control.Client) error) error {
	if name == "" {
		only, err := onlyTunnel(how)
		if err != nil {
			return err
		}
		name = only
	}
	c, err := control.Dial(ctx, name)
	if err != nil {
		return withHint(name, err)
	}
	defer c.Close()
	return withHint(name, do(c))
}

// onlyTunnel returns the name of the only running tunnel.
func onlyTunnel(how func(name string) string) (string, error) {
	names, err := control.Names()
	switch {
	case err != nil:
		return "", err
	case len(names) == 0:
		return "", hint.With(errors.New("no tunnel is running"), noTunnelHint)
	case len(names) > 1:
		return "", hint.With(hint.Usagef("%d tunnels are running", len(names)),
			fmt.Sprintf("name one, e.g. `%s`; running: %s", how(names[0]), strings.Join(names, ", ")))
	}
	return names[0], nil
}

// noTunnelHint is the hint if no tunnel is found.
const noTunnelHint = "start one with `cleat tunnel up FILE`\n" +
	"a tunnel in a container or another network namespace is controlled from inside there, root's tunnels by root"

// withHint adds a hint to an error about the tunnel called name.
func withHint(name string, err error) error {
	var e *control.Error
	switch {
	case errors.As(err, &e) && len(e.Findings) > 0:
		return err // the caller prints them
	case errors.As(err, &e) && e.Status >= 400 && e.Status < 500 && e.Status != http.StatusForbidden:
		return hint.With(hint.Usage(err), e.Hint)
	case errors.As(err, &e):
		return hint.With(err, e.Hint)
	case errors.Is(err, control.ErrAmbiguous):
		return hint.With(err, fmt.Sprintf("name the user as well: UID/%s; `cleat tunnel ls` lists the UIDs", name))
	case errors.Is(err, control.ErrNotRunning):
		names, listErr := control.Names()
		if listErr != nil || len(names) == 0 {
			return hint.With(err, noTunnelHint)
		}
		return hint.With(err, hint.DidYouMean(name, names))
	}
	return err
}

// completeRunning completes the running tunnels.
func completeRunning(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names, err := control.Names()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// onRunning completes a command about a running tunnel: its argument is the tunnel's name, which
// may be left out if only one runs, and do carries it out.
func onRunning(cmd *cobra.Command, do func(cmd *cobra.Command, c *control.Client) error) *cobra.Command {
	cmd.Args, cmd.ValidArgsFunction = cobra.MaximumNArgs(1), completeRunning
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		how := func(name string) string { return cmd.CommandPath() + " " + name }
		return withRunning(cmd.Context(), strings.Join(args, ""), how, func(c *control.Client) error { return do(cmd, c) })
	}
	return cmd
}

func newReload() *cobra.Command {
	return onRunning(&cobra.Command{
		Use:   "reload [NAME]",
		Short: "make a running tunnel read its file again",
		Long: `Makes a running tunnel read its file again, apply the changes without losing a
packet, and print them. Changes that need a restart (name, device, form, key,
compat, metrics) are refused, the others are applied, and the exit code is 1. A
file with mistakes changes nothing: they are printed as by "cleat tunnel check",
and the exit code is 2. If the kernel refuses a change, such as a route that
exists by another device, all changes are undone, and the exit code is 1.`,
		Example: "  cleat tunnel reload\n  cleat tunnel reload office",
	}, func(cmd *cobra.Command, c *control.Client) error {
		done, err := c.Reload(cmd.Context())
		var e *control.Error
		if errors.As(err, &e) && len(e.Findings) > 0 {
			return printFindings(cmd.OutOrStdout(), e)
		}
		if err != nil {
			return err
		}
		return printReloaded(cmd.OutOrStdout(), done)
	})
}

// printFindings prints the mistakes in a tunnel's file, and returns an error.
func printFindings(w io.Writer, e *control.Error) error {
	var b strings.Builder
	for _, f := range e.Findings {
		fmt.Fprintln(&b, columns.Plain(f.String()))
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return err
	}
	return cmp.Or(mistakes(e.Findings), error(e))
}

// printReloaded prints the result of a reload. It returns an error if a change was
// refused.
func printReloaded(w io.Writer, r control.Reloaded) error {
	var b strings.Builder
	for _, s := range r.Changed {
		fmt.Fprintln(&b, columns.Plain(s))
	}
	for _, s := range r.Refused {
		fmt.Fprintf(&b, "refused: %s\n", columns.Plain(s))
	}
	if b.Len() == 0 {
		b.WriteString("nothing has changed\n")
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return err
	}
	if n := len(r.Refused); n > 0 {
		return hint.With(fmt.Errorf("%s refused", term.Count(n, "change")),
			"restart the tunnel: `cleat tunnel down`, then `cleat tunnel up FILE`")
	}
	return nil
}

func newDown() *cobra.Command {
	return onRunning(&cobra.Command{
		Use:   "down [NAME]",
		Short: "stop a running tunnel",
		Long: `Stops a running tunnel, as SIGTERM does, and waits until it has ended. Its
device is removed.`,
		Example: "  cleat tunnel down\n  cleat tunnel down office",
	}, func(cmd *cobra.Command, c *control.Client) error {
		if err := c.Stop(cmd.Context()); err != nil {
			return err
		}
		return c.WaitGone(cmd.Context())
	})
}

func newMetrics() *cobra.Command {
	return onRunning(&cobra.Command{
		Use:   "metrics [NAME]",
		Short: "print the metrics of a running tunnel",
		Long: `Prints the metrics of a running tunnel in Prometheus' text format, as the tunnel
serves them at the address that "metrics" in its file sets.`,
		Example: "  cleat tunnel metrics\n  cleat tunnel metrics office | grep path_live",
	}, func(cmd *cobra.Command, c *control.Client) error {
		text, err := c.Metrics(cmd.Context())
		if err != nil {
			return err
		}
		_, err = cmd.OutOrStdout().Write(text)
		return err
	})
}
