package networks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"cleat/cli/hint"
	"cleat/cli/term"
	"cleat/internal/columns"
	"cleat/network/named"

	"github.com/spf13/cobra"
)

const rulesText = `
SOURCE is NETWORK, NETWORK/CONTAINER, NETWORK/LABEL=VALUE, an address or network
outside, or any. DESTINATION may also be a DNS name, or the name of a container
on the network of SOURCE. PORTS are a port, a range, a list or *.

Rules have no order. A deny beats an allow, unless the allow is an exception to
it: the deny matches everything that the allow matches, and more. What no rule
matches is allowed inside a network and from it to the outside, and denied
between networks. Connections that a change denies end.`

func newAllow() *cobra.Command {
	return newVerb(true, "allow SOURCE to DESTINATION[:PORTS[/PROTOCOL]]", "allow traffic between containers",
		"Allows traffic that would be denied: from one network to another, or as an\nexception to a deny.\n"+rulesText,
		`  cleat net allow web/api to db:5432
  cleat net allow front to web/tier=back:8000-8009/tcp
  cleat net allow --remove web/api to db:5432`)
}

func newDeny() *cobra.Command {
	return newVerb(false, "deny SOURCE to DESTINATION[:PORTS[/PROTOCOL]]", "deny traffic between containers, or to addresses outside",
		"Denies traffic that would be allowed: inside a network, to addresses or names\noutside, or to a published port.\n"+rulesText,
		`  cleat net deny web/api to web/admin
  cleat net deny web to 10.0.0.0/8
  cleat net deny 203.0.113.0/24 to web/front:80`)
}

func newVerb(allow bool, use, short, long, example string) *cobra.Command {
	remove, asJSON := false, false
	cmd := &cobra.Command{
		Use: use, DisableFlagsInUseLine: true, Short: short, Long: long, Example: example,
		ValidArgsFunction: completeRule,
		RunE: func(cmd *cobra.Command, args []string) error {
			text := strings.Join(args, " ")
			cfg, err := config(cmd)
			if err != nil {
				return err
			}
			do := named.Deny
			switch {
			case remove:
				do = func(ctx context.Context, cfg named.Config, text string) (named.Rule, error) {
					return named.RemoveRule(ctx, cfg, allow, text)
				}
			case allow:
				do = named.Allow
			}
			r, err := do(cmd.Context(), cfg, text)
			if err != nil {
				return WithHint(err)
			}
			if asJSON {
				return term.WriteJSONLine(cmd.OutOrStdout(), map[string]any{"rule": r.String(), "removed": remove})
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), columns.Plain(r.String()))
			return err
		},
	}
	cmd.Flags().BoolVar(&remove, "remove", false, "remove the rule again")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

func completeRule(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 1 {
		return []string{"to"}, cobra.ShellCompDirectiveNoFileComp
	}
	words := networkNames(cmd)
	for _, network := range networkNames(cmd) {
		for _, name := range connectedContainers(cmd, []string{network}) {
			words = append(words, network+"/"+name)
		}
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

func newPolicy() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:                   "policy NETWORK [FILE]",
		DisableFlagsInUseLine: true,
		Short:                 "show the rules of a network, or replace them by those of a file",
		Long: `Prints the rules of a network or, with FILE, replaces all of them. A file has
one rule a line: "allow SOURCE to DESTINATION[:PORTS[/PROTOCOL]]", "deny …", or
"default deny", which denies what no rule matches inside the network and from it
to the outside. # starts a comment. FILE "-" is standard input.
` + rulesText,
		Example: `  cleat net policy web
  cleat net policy web web.rules`,
		ValidArgsFunction: completeNetworks,
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := config(cmd)
			if err != nil {
				return err
			}
			switch len(args) {
			case 1:
				return printPolicy(cmd.OutOrStdout(), cfg, args[0], asJSON)
			case 2:
				return setPolicy(cmd, cfg, args[0], args[1])
			}
			return hint.With(hint.Usagef("want a network, and perhaps a file"), "e.g. `cleat net policy web web.rules`")
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

func printPolicy(out io.Writer, cfg named.Config, network string, asJSON bool) error {
	n, err := named.Store{Store: cfg.Attach.Store}.Network(network)
	if err != nil {
		return WithHint(err)
	}
	if asJSON {
		return term.WriteJSONLine(out, map[string]any{"network": n.Name, "rules": term.OrEmpty(n.Rules), "default_deny": n.DefaultDeny})
	}
	lines := n.Rules
	if n.DefaultDeny {
		lines = append([]string{"default deny"}, lines...)
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(out, columns.Plain(line)); err != nil {
			return err
		}
	}
	return nil
}

func setPolicy(cmd *cobra.Command, cfg named.Config, network, path string) error {
	in, name := cmd.InOrStdin(), "standard input"
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return hint.Usage(err)
		}
		defer f.Close()
		in, name = f, path
	}
	store := named.Store{Store: cfg.Attach.Store}
	rules, defaultDeny, err := named.ParseRules(name, in, func(n string) bool { _, err := store.Network(n); return err == nil })
	if err != nil {
		return fileHint(err)
	}
	err = named.SetPolicy(cmd.Context(), cfg, network, rules, defaultDeny)
	var none *named.NoRuleError
	if errors.As(err, &none) {
		return hint.Usage(err)
	}
	return WithHint(err)
}
