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

const name = "ctl"

type flags struct {
	target string
	json   bool
}

// New returns the command ctl.
func New() *cobra.Command {
	f := &flags{}
	cmd := &cobra.Command{
		Use:   "ctl [NAME|PID|PATH] COMMAND",
		Short: "query and control a running \"cleat run\"",
		Long: `Lists the flows of a running "cleat run", opens and closes its ports, and
replaces its policy. NAME is the value of --name, PID the process id of
"cleat run" or of its command, PATH the socket of --control. If only one is
running, it needs no name.

Only the same user and root are admitted, and only from the network namespace in
which "cleat run" was started, not from inside.`,
		Example: `  cleat ctl ls
  cleat ctl flows
  cleat ctl web flows --json
  cleat ctl web forward add 8443:443
  cleat ctl 4711 policy allow example.com:443/tcp`,
		Args: hint.NoCommand,
		RunE: hint.NoCommand,
	}
	p := cmd.PersistentFlags()
	p.StringVar(&f.target, "target", "", "the instance, `NAME|PID|PATH`: the same as before the subcommand")
	p.BoolVar(&f.json, "json", false, "print JSON")
	complete.Flag(cmd, "target", completeTargets)
	cmd.ValidArgsFunction = completeTargets
	cmd.AddCommand(f.listCmd(), f.flowsCmd(), f.statsCmd(), f.forwardCmd(), f.policyCmd(), f.stopCmd())
	return cmd
}

// Args replaces a target before the subcommand, as in `cleat ctl web flows`, by the flag
// --target, which the library understands. It does so for completion as well, unless the target
// itself is being completed.
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

// subcommands are the subcommands of `cleat ctl`. A target can't have such a name.
var subcommands = []string{"ls", "flows", "stats", "forward", "policy", "stop", "help"}

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

// with connects to the target, or the only running instance, and calls do.
func (f *flags) with(ctx context.Context, do func(*control.Client) error) error {
	ref := f.target
	if ref == "" {
		var err error
		if ref, err = onlyInstance(ctx); err != nil {
			return err
		}
	}
	c, err := control.Dial(ctx, ref)
	if err != nil {
		return withHint(ctx, ref, err)
	}
	defer c.Close()
	return withHint(ctx, ref, do(c))
}

func onlyInstance(ctx context.Context) (string, error) {
	all, err := control.List(ctx)
	switch {
	case err != nil:
		return "", err
	case len(all) == 0:
		return "", hint.With(errors.New("no `cleat run` is running in this network namespace"), "start one with `cleat run -- CMD`")
	case len(all) > 1:
		return "", hint.With(hint.Usagef("%d instances of `cleat run` are running", len(all)),
			fmt.Sprintf("name one, e.g. `cleat ctl %s flows`; running: %s", columns.Word(all[0].Name), strings.Join(instanceNames(all), ", ")))
	}
	return all[0].Name, nil
}

func instanceNames(all []control.Info) []string {
	var names []string
	for _, info := range all {
		names = append(names, info.Name)
	}
	return names
}

// withHint adds a hint to an error of an instance, or to that there is none.
func withHint(ctx context.Context, ref string, err error) error {
	var e *control.Error
	switch {
	case errors.As(err, &e) && e.Kind == control.KindRequest:
		return hint.With(hint.Usage(err), e.Hint)
	case errors.As(err, &e) && e.Kind == control.KindVersion:
		return hint.With(err, "it is another version of cleat: use `cleat ctl` of that version, or restart it")
	case errors.As(err, &e):
		return hint.With(err, e.Hint)
	case errors.Is(err, control.ErrAmbiguous):
		return hint.With(err, "use the process id, which `cleat ctl ls` lists")
	case errors.Is(err, control.ErrNotRunning):
		all, listErr := control.List(ctx)
		if listErr != nil || len(all) == 0 {
			return hint.With(err, "no `cleat run` is running in this network namespace; start one with `cleat run -- CMD`")
		}
		return hint.With(err, hint.DidYouMean(ref, instanceNames(all)))
	}
	return err
}

// print writes v as JSON with --json, or calls text.
func print[T any](f *flags, w io.Writer, v T, text func(io.Writer, T) error) error {
	if f.json {
		return term.WriteJSON(w, v)
	}
	return text(w, v)
}

// query returns the RunE of a command that prints what get returns.
func query[T any](f *flags, get func(*control.Client, context.Context) (T, error), text func(io.Writer, T) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		return f.with(cmd.Context(), func(c *control.Client) error {
			v, err := get(c, cmd.Context())
			if err != nil {
				return err
			}
			return print(f, cmd.OutOrStdout(), v, text)
		})
	}
}

// list returns get with an empty list instead of nil, which JSON would print as null.
func list[T any](get func(*control.Client, context.Context) ([]T, error)) func(*control.Client, context.Context) ([]T, error) {
	return func(c *control.Client, ctx context.Context) ([]T, error) {
		all, err := get(c, ctx)
		return term.OrEmpty(all), err
	}
}

func (f *flags) listCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Short:   "list running instances",
		Long:    `Lists the instances of "cleat run" that the user may control.`,
		Example: "  cleat ctl ls\n  cleat ctl ls --json | jq -r '.[].name'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.target != "" {
				return hint.Usagef("ls lists all instances and takes no target")
			}
			all, err := control.List(cmd.Context())
			if err != nil {
				return err
			}
			return print(f, cmd.OutOrStdout(), term.OrEmpty(all), listText)
		},
	}
}

func (f *flags) flowsCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "flows",
		Short: "list open flows",
		Long: `Lists TCP connections, UDP flows and pings, oldest first: direction, source,
destination with its name, state, and the payload in each direction.`,
		Example: "  cleat ctl flows\n  cleat ctl web flows --json",
		Args:    cobra.NoArgs,
		RunE: query(f, list((*control.Client).Flows), func(w io.Writer, flows []control.Flow) error {
			return flowsText(w, flows, time.Now())
		}),
	}
}

func (f *flags) statsCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "stats",
		Short:   "print counters",
		Long:    `Prints packets, flows by tier, refusals, and how much of each limit is in use.`,
		Example: "  cleat ctl stats\n  cleat ctl web stats --json",
		Args:    cobra.NoArgs,
		RunE:    query(f, (*control.Client).Stats, writeStats),
	}
}

func (f *flags) forwardCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "forward COMMAND",
		Short:   "list, open and close forwarded ports",
		Long:    `Lists, opens and closes ports of the host that lead inside.`,
		Example: "  cleat ctl forward ls\n  cleat ctl web forward add 127.0.0.1:8080:80\n  cleat ctl web forward rm 127.0.0.1:8080:80",
		Args:    hint.NoCommand,
		RunE:    hint.NoCommand,
	}
	rm := f.forwardChangeCmd("rm", "close ports", `Closes ports, which are named as they were opened. Their connections stay open.`, func(ctx context.Context, c *control.Client, w control.Forward) (control.Forward, error) {
		return w, c.RemoveForward(ctx, w)
	})
	rm.ValidArgsFunction = f.completeForwards
	cmd.AddCommand(f.forwardListCmd(), rm,
		f.forwardChangeCmd("add", "open ports", `Opens ports like --publish of "cleat run", and prints where each listens.`, func(ctx context.Context, c *control.Client, w control.Forward) (control.Forward, error) {
			return c.AddForward(ctx, w)
		}))
	return cmd
}

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
		Short:   "list open ports",
		Long:    `Lists forwarded ports: where each listens, and where it leads.`,
		Example: "  cleat ctl forward ls",
		Args:    cobra.NoArgs,
		RunE:    query(f, list((*control.Client).Forwards), forwardsText),
	}
}

// forwardChangeCmd returns the command forward add or rm. If a port fails, those before it stay
// changed and are printed.
func (f *flags) forwardChangeCmd(name, short, long string, change func(context.Context, *control.Client, control.Forward) (control.Forward, error)) *cobra.Command {
	return &cobra.Command{
		Use:     name + " [ADDRESS:]PORT:PORT[/udp]…",
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
				return hint.With(hint.Usagef("auto is only for `cleat run`"), "cleat run -p auto")
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
				if len(done) == 0 || name == "rm" && !f.json {
					return failed
				}
				err := print(f, cmd.OutOrStdout(), done, forwardsText)
				return cmp.Or(failed, err)
			})
		},
	}
}

func (f *flags) policyCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy COMMAND",
		Short: "show and change the rules",
		Long: `Shows and changes the rules about what may be reached. They apply to new flows;
open flows stay open.`,
		Example: "  cleat ctl policy show >rules\n  cleat ctl web policy set rules\n  cleat ctl web policy allow example.com:443/tcp",
		Args:    hint.NoCommand,
		RunE:    hint.NoCommand,
	}
	cmd.AddCommand(f.policyShowCmd(), f.policySetCmd(), f.policyAddCmd("allow", true), f.policyAddCmd("deny", false))
	return cmd
}

func (f *flags) policyShowCmd() *cobra.Command {
	get := func(c *control.Client, ctx context.Context) (map[string]string, error) {
		text, err := c.Policy(ctx)
		return map[string]string{"policy": text}, err
	}
	return &cobra.Command{
		Use:     "show",
		Short:   "print the current rules",
		Long:    `Prints the current rules in the form of a policy file, which "set" reads.`,
		Example: "  cleat ctl web policy show",
		Args:    cobra.NoArgs,
		RunE:    query(f, get, func(w io.Writer, v map[string]string) error { return writePolicy(w, v["policy"]) }),
	}
}

func (f *flags) policySetCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "set FILE",
		Short:   "replace all rules",
		Long:    `Replaces all rules by those of FILE, or of standard input for "-".`,
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

func (f *flags) policyAddCmd(name string, allow bool) *cobra.Command {
	return &cobra.Command{
		Use:     name + " RULE…",
		Short:   "add rules that " + name,
		Long:    fmt.Sprintf("Adds rules to the current ones, like --%s of \"cleat run\".", name),
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

// setPolicy replaces the current rules by what change returns for them.
func (f *flags) setPolicy(ctx context.Context, change func(policy.Rules) policy.Rules) error {
	return f.with(ctx, func(c *control.Client) error {
		text, err := c.Policy(ctx)
		if err != nil {
			return err
		}
		rules, err := policy.Parse("current policy", strings.NewReader(text))
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
		Short: "stop an instance",
		Long: `Stops an instance as SIGTERM does: "cleat run -- CMD" passes the signal to CMD
and ends when CMD does; "cleat run --netns" ends at once.`,
		Example: "  cleat ctl web stop",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.with(cmd.Context(), func(c *control.Client) error { return c.Stop(cmd.Context()) })
		},
	}
}
