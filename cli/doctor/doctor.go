package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"

	"cleat/bench/host"
	"cleat/cli/container"
	"cleat/cli/term"
	"cleat/network/trace"

	"github.com/spf13/cobra"
)

// New returns the command doctor.
func New() *cobra.Command {
	var strict, asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor [A B]",
		Short: "report settings that distort measurements or break networking",
		Long: `Without arguments, describes the machine and reports settings that distort
measurements or break networking, worst first, each with a remedy. It changes
nothing. What only root may read is listed as unread.

With A and B, follows packets from namespace A to namespace B: each link with
its MTU, offloads and losses, and the firewall rules that match (DROPS, matches)
or could match, depending on ports and state (may drop, may match). A and B are
containers (web, or podman:web if several engines have the name), process ids,
names in /run/netns, or paths. This needs root, to enter them.`,
		Example: `  cleat doctor
  sudo cleat doctor --strict && cleat bench quick
  sudo cleat doctor 1 web
  sudo cleat doctor podman:web /proc/4711/ns/net
  sudo cleat doctor blue red --json | jq '.hops[] | select(.smallest)'`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || len(args) == 2 {
				return nil
			}
			return fmt.Errorf("want no namespaces or two, not %d", len(args))
		},
		ValidArgsFunction: container.CompleteTwo,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				return tracePath(cmd.Context(), cmd.OutOrStdout(), args[0], args[1], strict, asJSON)
			}
			return examine(cmd.Context(), cmd.OutOrStdout(), strict, asJSON)
		},
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "exit with 1 if there is a problem; with A and B, also for a warning")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// examination is the output of `cleat doctor --json`.
type examination struct {
	Host     host.Host      `json:"host"`
	Findings []host.Finding `json:"findings"`
}

func examine(ctx context.Context, w io.Writer, strict, asJSON bool) error {
	h := host.Fingerprint(ctx)
	findings := host.Diagnose(h)
	if err := context.Cause(ctx); err != nil {
		return err
	}
	var err error
	if asJSON {
		err = term.WriteJSON(w, examination{h, findings})
	} else if err = h.WriteText(w); err == nil {
		if _, err = fmt.Fprintln(w); err == nil {
			err = host.WriteFindings(w, findings, h.Unreadable)
		}
	}
	if err != nil || !strict {
		return err
	}
	problems := 0
	for _, f := range findings {
		if f.Severity == host.Problem {
			problems++
		}
	}
	switch problems {
	case 0:
		return nil
	case 1:
		return errors.New("there is a problem")
	}
	return fmt.Errorf("there are %d problems", problems)
}

func tracePath(ctx context.Context, w io.Writer, refA, refB string, strict, asJSON bool) error {
	a, err := container.Namespace(ctx, refA)
	if err != nil {
		return err
	}
	defer a.Close()
	b, err := container.Namespace(ctx, refB)
	if err != nil {
		return err
	}
	defer b.Close()
	o, err := trace.Observe(ctx, container.Names(ctx))
	if err != nil {
		return err
	}
	defer o.Close()
	p, err := o.Trace(a, b)
	if err != nil {
		return container.EnterHint(err)
	}
	if asJSON {
		err = term.WriteJSON(w, p)
	} else {
		err = p.WriteText(w)
	}
	if err == nil && strict && (!p.Complete || len(p.Warnings) > 0) {
		return fmt.Errorf("there is a problem on the way from %s to %s", refA, refB)
	}
	return err
}
