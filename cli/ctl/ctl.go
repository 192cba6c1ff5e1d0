package ctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"cleat/cli/complete"
	"cleat/cli/hint"
	"cleat/cli/run"
	"cleat/cli/term"
	"cleat/internal/columns"
	"cleat/policy"
	"cleat/sandbox/control"

	"github.com/spf13/cobra"
)

// name is the command that takes the name of its target before the words of
// what is to be done.
const name = "ctl"

// flags are what all commands of `cleat ctl` share.
type flags struct {
	target string
	asJSON bool
}

func New() *cobra.Command {
	f := &flags{}
	cmd := &cobra.Command{
		Use:   "ctl [NAME|PID|PATH] COMMAND",
		Short: "ask and tell a running \"cleat run\"",
		Long: `Lists what the helper of a running "cleat run" carries, opens and closes its
ports and replaces its policy. NAME is what --name gave, PID the process id of
"cleat run" or of its command, PATH the socket of --control; where only one is
running none is needed.

Only the same user and root are listened to, and only from the network
namespace that "cleat run" was started in: not from inside.`,
		Example: `  cleat ctl ls
  cleat ctl flows
  cleat ctl web flows --json
  cleat ctl web forward add 8443:443
  cleat ctl 4711 policy allow example.com:443/tcp`,
		Args: hint.NoCommand,
		RunE: func(cmd *cobra.Command, args []string) error { return hint.NoCommand(cmd, args) },
	}
	p := cmd.PersistentFlags()
	p.StringVar(&f.target, "target", "", "`NAME|PID|PATH` of the helper, as before the command")
	p.BoolVar(&f.asJSON, "json", false, "print JSON")
	complete.Flag(cmd, "target", completeTargets)
	cmd.ValidArgsFunction = completeTargets
	cmd.AddCommand(f.listCmd(), f.flowsCmd(), f.statsCmd(), f.forwardCmd(), f.policyCmd(), f.stopCmd())
	return cmd
}

// Args moves a target that stands before the command, as in `cleat ctl web
// flows`, behind its flag, where cobra looks for it. Completion gets the same,
// unless the target is what is being completed.
func Args(args []string) []string {
	at := 0
	if len(args) > 0 && (args[0] == cobra.ShellCompRequestCmd || args[0] == cobra.ShellCompNoDescRequestCmd) {
		at = 1
	}
	if len(args) < at+3 || args[at] != name || strings.HasPrefix(args[at+1], "-") || slices.Contains(subcommands, args[at+1]) {
		return args
	}
	moved := append(slices.Clone(args[:at+1]), "--target="+args[at+1])
	return append(moved, args[at+2:]...)
}

// subcommands are the commands of `cleat ctl`, which are no targets.
var subcommands = []string{"ls", "flows", "stats", "forward", "policy", "stop", "help"}

// completeTargets offers the helpers that are running.
func completeTargets(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	all, err := control.List(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, info := range all {
		names = append(names, cobra.CompletionWithDesc(info.Name, columns.Plain(strings.Join(info.Command, " "))))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// with connects to the target and calls do.
func (f *flags) with(ctx context.Context, do func(*control.Client) error) error {
	ref := f.target
	if ref == "" {
		only, err := onlyHelper(ctx)
		if err != nil {
			return err
		}
		ref = only
	}
	c, err := control.Dial(ctx, ref)
	if err != nil {
		return withHint(ctx, ref, err)
	}
	defer c.Close()
	return withHint(ctx, ref, do(c))
}

// onlyHelper is the name of the one helper that is running.
func onlyHelper(ctx context.Context) (string, error) {
	all, err := control.List(ctx)
	switch {
	case err != nil:
		return "", err
	case len(all) == 0:
		return "", hint.With(errors.New("nothing is running that could be asked"), "start something with `cleat run -- CMD`")
	case len(all) > 1:
		return "", hint.With(hint.Usagef("%d helpers are running: which one?", len(all)),
			fmt.Sprintf("name it, e.g. `cleat ctl %s flows`; running: %s", columns.Word(all[0].Name), strings.Join(helperNames(all), ", ")))
	}
	return all[0].Name, nil
}

func helperNames(all []control.Info) []string {
	var names []string
	for _, info := range all {
		names = append(names, info.Name)
	}
	return names
}

// withHint adds to a helper's refusal, or to its absence, what to type.
func withHint(ctx context.Context, ref string, err error) error {
	var e *control.Error
	switch {
	case errors.As(err, &e) && e.Kind == control.KindRequest:
		return hint.With(hint.Usage(err), e.Hint)
	case errors.As(err, &e) && e.Kind == control.KindVersion:
		return hint.With(err, "the helper is of another version of cleat: use that one's `cleat ctl`, or start it again")
	case errors.As(err, &e):
		return hint.With(err, e.Hint)
	case errors.Is(err, control.ErrAmbiguous):
		return hint.With(err, "give the process id: cleat ctl ls")
	case errors.Is(err, control.ErrNotRunning):
		all, listErr := control.List(ctx)
		if listErr != nil || len(all) == 0 {
			return hint.With(err, "none is running in this network namespace; start one with `cleat run -- CMD`")
		}
		return hint.With(err, hint.DidYouMean(ref, helperNames(all)))
	}
	return err
}

// print writes v as JSON, or what text makes of it.
func (f *flags) print(w io.Writer, v any, text func(io.Writer) error) error {
	if f.asJSON {
		return term.WriteJSON(w, v)
	}
	return text(w)
}

func (f *flags) listCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Short:   "list what is running",
		Example: "  cleat ctl ls\n  cleat ctl ls --json | jq -r '.[].name'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.target != "" {
				return hint.Usagef("ls lists all: it takes no target")
			}
			all, err := control.List(cmd.Context())
			if err != nil {
				return err
			}
			return f.print(cmd.OutOrStdout(), term.OrEmpty(all), func(w io.Writer) error { return helpersText(w, all) })
		},
	}
}

func (f *flags) flowsCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "flows",
		Short: "list the connections under way",
		Long: `Lists TCP connections, UDP conversations and pings, oldest first: who began
them, whereto, by what name, and the payload that went each way.`,
		Example: "  cleat ctl flows\n  cleat ctl web flows --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.with(cmd.Context(), func(c *control.Client) error {
				flows, err := c.Flows(cmd.Context())
				if err != nil {
					return err
				}
				return f.print(cmd.OutOrStdout(), term.OrEmpty(flows), func(w io.Writer) error { return flowsText(w, flows, time.Now()) })
			})
		},
	}
}

func (f *flags) statsCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "stats",
		Short:   "print the counters",
		Example: "  cleat ctl stats\n  cleat ctl web stats --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.with(cmd.Context(), func(c *control.Client) error {
				stats, err := c.Stats(cmd.Context())
				if err != nil {
					return err
				}
				return f.print(cmd.OutOrStdout(), stats, func(w io.Writer) error { return writeStats(w, stats) })
			})
		},
	}
}

func (f *flags) forwardCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "forward COMMAND",
		Short:   "list, open and close ports of the host that lead inside",
		Example: "  cleat ctl forward ls\n  cleat ctl web forward add 127.0.0.1:8080:80\n  cleat ctl web forward rm 127.0.0.1:8080:80",
		Args:    hint.NoCommand,
		RunE:    func(cmd *cobra.Command, args []string) error { return hint.NoCommand(cmd, args) },
	}
	rm := f.forwardChangeCmd("rm", "close ports", `Closes ports, named as they were opened. Connections that came in by them live
on.`, func(ctx context.Context, c *control.Client, w control.Forward) (control.Forward, error) {
		return w, c.RemoveForward(ctx, w)
	})
	rm.ValidArgsFunction = f.completeForwards
	cmd.AddCommand(f.forwardListCmd(), rm,
		f.forwardChangeCmd("add", "open ports", `Opens ports as --publish does at the start, and prints what each listens on.`, func(ctx context.Context, c *control.Client, w control.Forward) (control.Forward, error) {
			return c.AddForward(ctx, w)
		}))
	return cmd
}

// completeForwards offers the ports that are open.
func (f *flags) completeForwards(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	var open []string
	err := f.with(cmd.Context(), func(c *control.Client) error {
		all, err := c.Forwards(cmd.Context())
		for _, w := range all {
			open = append(open, w.String())
		}
		return err
	})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return open, cobra.ShellCompDirectiveNoFileComp
}

func (f *flags) forwardListCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Short:   "list the open ports",
		Example: "  cleat ctl forward ls",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.with(cmd.Context(), func(c *control.Client) error {
				all, err := c.Forwards(cmd.Context())
				if err != nil {
					return err
				}
				return f.print(cmd.OutOrStdout(), term.OrEmpty(all), func(w io.Writer) error { return forwardsText(w, all) })
			})
		},
	}
}

// forwardChangeCmd is `cleat ctl forward add` or `rm`. Ports that were changed
// before one fails stay changed, and are printed.
func (f *flags) forwardChangeCmd(name, short, long string, change func(context.Context, *control.Client, control.Forward) (control.Forward, error)) *cobra.Command {
	return &cobra.Command{
		Use:     name + " [IP:]HOST:PORT[/udp]…",
		Short:   short,
		Long:    long,
		Example: fmt.Sprintf("  cleat ctl forward %s 8080:80\n  cleat ctl web forward %s 5353:53/udp 8000-8010:9000-9010", name, name),
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var p run.Published
			for _, spec := range args {
				if err := p.Add(spec); err != nil {
					return err
				}
			}
			if len(p.Auto) > 0 {
				return hint.With(hint.Usagef("auto can be given at the start only"), "cleat run -p auto")
			}
			return f.with(cmd.Context(), func(c *control.Client) error {
				var done []control.Forward
				var failed error
				for _, one := range p.Forwards {
					w, err := change(cmd.Context(), c, run.WireForward(one))
					if err != nil {
						failed = err
						break
					}
					done = append(done, w)
				}
				if len(done) == 0 || name == "rm" && !f.asJSON {
					return failed
				}
				err := f.print(cmd.OutOrStdout(), done, func(w io.Writer) error { return forwardsText(w, done) })
				return cmp.Or(failed, err)
			})
		},
	}
}

func (f *flags) policyCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy COMMAND",
		Short: "show and replace the rules",
		Long: `Shows and replaces the rules of what may be reached. They hold for flows that
begin from then on; those under way live on.`,
		Example: "  cleat ctl policy show >rules\n  cleat ctl web policy set rules\n  cleat ctl web policy allow example.com:443/tcp",
		Args:    hint.NoCommand,
		RunE:    func(cmd *cobra.Command, args []string) error { return hint.NoCommand(cmd, args) },
	}
	cmd.AddCommand(f.policyShowCmd(), f.policySetCmd(), f.policyAddCmd("allow", true), f.policyAddCmd("deny", false))
	return cmd
}

func (f *flags) policyShowCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "show",
		Short:   "print the rules in force",
		Example: "  cleat ctl web policy show",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.with(cmd.Context(), func(c *control.Client) error {
				text, err := c.Policy(cmd.Context())
				if err != nil {
					return err
				}
				return f.print(cmd.OutOrStdout(), map[string]string{"policy": text}, func(w io.Writer) error { return writePolicy(w, text) })
			})
		},
	}
}

func (f *flags) policySetCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "set FILE",
		Short:   "replace the rules by those of a file",
		Long:    `Replaces all rules by those of FILE, - for standard input.`,
		Example: "  cleat ctl web policy set rules",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			rules, err := run.ReadPolicy(args[0])
			if err != nil {
				return err
			}
			return f.setPolicy(cmd.Context(), func(policy.Rules) policy.Rules { return rules })
		},
	}
}

// policyAddCmd is `cleat ctl policy allow` or `deny`.
func (f *flags) policyAddCmd(name string, allow bool) *cobra.Command {
	return &cobra.Command{
		Use:     name + " RULE…",
		Short:   name + " more",
		Long:    fmt.Sprintf("Adds rules to those in force, as --%s does at the start.", name),
		Example: fmt.Sprintf("  cleat ctl web policy %s 192.0.2.0/24:80,443/tcp\n  cleat ctl web policy %s '*.example.com'", name, name),
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var more []policy.Rule
			for _, text := range args {
				rule, err := policy.ParseRule(allow, text)
				if err != nil {
					return run.RuleHint(hint.Usage(err))
				}
				more = append(more, rule)
			}
			return f.setPolicy(cmd.Context(), func(r policy.Rules) policy.Rules {
				r.Rules = append(r.Rules, more...)
				return r
			})
		},
	}
}

// setPolicy replaces the rules in force by what change makes of them.
func (f *flags) setPolicy(ctx context.Context, change func(policy.Rules) policy.Rules) error {
	return f.with(ctx, func(c *control.Client) error {
		text, err := c.Policy(ctx)
		if err != nil {
			return err
		}
		rules, err := policy.Parse("the policy in force", strings.NewReader(text))
		if err != nil {
			return err
		}
		changed, err := change(rules).MarshalText()
		if err != nil {
			return err
		}
		return c.SetPolicy(ctx, string(changed))
	})
}

func (f *flags) stopCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "stop",
		Short: "end it",
		Long: `Ends it as SIGTERM does: "cleat run -- CMD" passes the signal to CMD and ends
when CMD does; "cleat run --netns" ends at once.`,
		Example: "  cleat ctl web stop",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.with(cmd.Context(), func(c *control.Client) error { return c.Stop(cmd.Context()) })
		},
	}
}
