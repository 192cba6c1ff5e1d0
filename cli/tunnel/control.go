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

// withRunning connects to the running tunnel called name, or, without one, to the only
// one that is running, and calls do. how is the command line that names one.
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

// onlyTunnel is the name of the one tunnel that is running.
func onlyTunnel(how func(name string) string) (string, error) {
	names, err := control.Names()
	switch {
	case err != nil:
		return "", err
	case len(names) == 0:
		return "", hint.With(errors.New("no tunnel is running"), noTunnelHint)
	case len(names) > 1:
		return "", hint.With(hint.Usagef("%d tunnels are running: which one?", len(names)),
			fmt.Sprintf("name it, e.g. `%s`; running: %s", how(names[0]), strings.Join(names, ", ")))
	}
	return names[0], nil
}

// noTunnelHint is what to do where no tunnel is found.
const noTunnelHint = "start one with `cleat tunnel up FILE`\n" +
	"one that runs in a container or another network namespace is asked from inside there; one of root's by root"

// withHint adds to a tunnel's refusal, or to its absence, what to type.
func withHint(name string, err error) error {
	var e *control.Error
	switch {
	case errors.As(err, &e) && len(e.Findings) > 0:
		return err // the caller shows them
	case errors.As(err, &e) && isMistake(e.Status):
		return hint.With(hint.Usage(err), e.Hint)
	case errors.As(err, &e):
		return hint.With(err, e.Hint)
	case errors.Is(err, control.ErrAmbiguous):
		return hint.With(err, fmt.Sprintf("name its user, too: UID/%s; `cleat tunnel ls` has the UID of each", name))
	case errors.Is(err, control.ErrNotRunning):
		names, listErr := control.Names()
		if listErr != nil || len(names) == 0 {
			return hint.With(err, noTunnelHint)
		}
		return hint.With(err, hint.DidYouMean(name, names))
	}
	return err
}

// isMistake tells whether an answer says that what was asked for is wrong.
func isMistake(status int) bool {
	return status >= 400 && status < 500 && status != http.StatusForbidden
}

// completeRunning offers the tunnels that are running.
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

// nameArg is a tunnel's name among the arguments, "" if there is none.
func nameArg(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

// behind says how a name is given behind a command.
func behind(command string) func(name string) string {
	return func(name string) string { return "cleat tunnel " + command + " " + name }
}

func newReload() *cobra.Command {
	return &cobra.Command{
		Use:   "reload [NAME]",
		Short: "have a running tunnel read its file again",
		Long: `Has a running tunnel read its file again and do what it says now, without losing
a packet: paths, addresses, routes, scheduler, reorder, queue and mtu. Prints
what is another now. What needs a new start is refused, the rest done all the
same, and the exit code is 1. A file with mistakes changes nothing; they are
printed as "cleat tunnel check" does, and the exit code is 2. Where the kernel
refuses something, such as a route that leads by another device already, all is
as it was, and the exit code is 1.`,
		Example:           "  cleat tunnel reload\n  cleat tunnel reload office",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completeRunning,
		RunE: func(cmd *cobra.Command, args []string) error {
			return withRunning(cmd.Context(), nameArg(args), behind("reload"), func(c *control.Client) error {
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
		},
	}
}

// printFindings prints what is wrong with a tunnel's file.
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

// printReloaded prints what a changed file came to. That something was refused is an
// error.
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
		return hint.With(fmt.Errorf("%s can't be while the tunnel runs", term.Count(n, "change")),
			"start it again: `cleat tunnel down`, then `cleat tunnel up FILE`")
	}
	return nil
}

func newDown() *cobra.Command {
	return &cobra.Command{
		Use:   "down [NAME]",
		Short: "end a running tunnel",
		Long: `Ends a running tunnel as SIGTERM does, and waits until it has ended. Its device
goes with it.`,
		Example:           "  cleat tunnel down\n  cleat tunnel down office",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completeRunning,
		RunE: func(cmd *cobra.Command, args []string) error {
			return withRunning(cmd.Context(), nameArg(args), behind("down"), func(c *control.Client) error {
				if err := c.Stop(cmd.Context()); err != nil {
					return err
				}
				return c.WaitGone(cmd.Context())
			})
		},
	}
}

func newMetrics() *cobra.Command {
	return &cobra.Command{
		Use:   "metrics [NAME]",
		Short: "print a running tunnel's counters as Prometheus reads them",
		Long: `Prints the metrics of a running tunnel in Prometheus' text format, as it serves
them at the place that "metrics" in its file names.`,
		Example:           "  cleat tunnel metrics\n  cleat tunnel metrics office | grep path_live",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completeRunning,
		RunE: func(cmd *cobra.Command, args []string) error {
			return withRunning(cmd.Context(), nameArg(args), behind("metrics"), func(c *control.Client) error {
				text, err := c.Metrics(cmd.Context())
				if err != nil {
					return err
				}
				_, err = cmd.OutOrStdout().Write(text)
				return err
			})
		},
	}
}
