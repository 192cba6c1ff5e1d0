package bench

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"cleat/bench"
	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/cli/term"
	"cleat/lab"

	"github.com/spf13/cobra"
)

func newList() *cobra.Command {
	var asJSON bool
	var flavour string
	var machines remoteFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "list networks and runtimes, and what others lack here",
		Long: `Lists the networks and container runtimes that this machine can measure. For the
others it says what is missing, and what would supply it. With --node it lists
what can be measured between these machines.`,
		Example: `  cleat bench list
  cleat bench list --node ssh://root@db1 --node ssh://root@db2
  cleat bench list --json | jq -r '.[] | select(.available) | .network'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFlavour(flavour); err != nil {
				return err
			}
			if err := machines.check(cmd); err != nil {
				return err
			}
			if len(machines.nodes) > 0 {
				listed, err := machines.listBetweenMachines(cmd.Context())
				if err != nil {
					return err
				}
				return writeNetworks(cmd.OutOrStdout(), listed, asJSON)
			}
			if _, inside := lab.Inside(); !inside {
				err := enterLab(cmd.Context(), lab.Config{Flavour: preferRoot(flavour)})
				if err == nil && !asJSON {
					// only now is it known whether root runs the command
					err = printRuntimes(cmd.OutOrStdout(), os.Geteuid() == 0 && flavour != "user")
				}
				return err
			}
			if _, err := lab.Settle(); err != nil {
				return err
			}
			return writeNetworks(cmd.OutOrStdout(), listNetworks(bench.Check), asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	flavourFlag(cmd, &flavour)
	machines.define(cmd)
	return cmd
}

func writeNetworks(w io.Writer, all []listed, asJSON bool) error {
	if asJSON {
		return term.WriteJSON(w, all)
	}
	return printNetworks(w, all)
}

// listed is one line of `cleat bench list`.
type listed struct {
	Network   string       `json:"network"`
	Title     string       `json:"title"`
	Role      catalog.Role `json:"role"`
	Available bool         `json:"available"`
	Reason    string       `json:"reason,omitempty"` // why it is not available
	Remedy    string       `json:"remedy,omitempty"` // what would supply it
	Isolates  string       `json:"isolates,omitempty"`
}

func listNetworks(check func(network string) error) []listed {
	var out []listed
	for _, entry := range catalog.All() {
		err := check(entry.Name)
		l := listed{Network: entry.Name, Title: entry.Title, Role: entry.Role, Available: err == nil}
		if err != nil {
			why := bench.Absence(err)
			l.Reason, l.Remedy = why.Reason, why.Remedy
		}
		if entry.Isolates {
			l.Isolates = entry.Why
		}
		out = append(out, l)
	}
	return out
}

// printNetworks writes what can be measured, by role, then what can't and why: each
// reason once, with all networks that it concerns.
func printNetworks(w io.Writer, all []listed) error {
	var b strings.Builder
	for _, role := range catalog.Roles() {
		if !slices.ContainsFunc(all, func(l listed) bool { return l.Role == role }) {
			continue
		}
		fmt.Fprintf(&b, "%s\n", role.Title())
		for _, l := range all {
			if l.Role != role {
				continue
			}
			mark := " "
			if !l.Available {
				mark = "-"
			}
			fmt.Fprintf(&b, "%s %-23s  %s\n", mark, l.Network, l.Title)
		}
	}
	printReasons(&b, "Unavailable here (-):", all, func(l listed) (string, string) { return l.Reason, l.Remedy })
	printReasons(&b, "Not applicable between neighbours, because these networks isolate them by design:", all,
		func(l listed) (string, string) { return l.Isolates, "" })
	_, err := io.WriteString(w, b.String())
	return err
}

var runtimeTitles = map[string]string{
	cell.Native: "plain namespaces",
	"docker":    "containers of Docker, by the lab's own daemon",
	"podman":    "containers of Podman",
	"apptainer": "containers of Apptainer",
}

// printRuntimes writes the runtimes of clients and servers, and what is missing for the
// others.
func printRuntimes(w io.Writer, root bool) error {
	var b strings.Builder
	fmt.Fprintf(&b, "\nWhat clients and servers can run in (--runtime)\n")
	var all []listed
	for _, name := range cell.Runtimes() {
		l, mark := listed{Network: name}, " "
		if err := bench.CheckRuntime(name, root); err != nil {
			why := bench.Absence(err)
			l.Reason, l.Remedy, mark = strings.TrimPrefix(why.Reason, name+": "), why.Remedy, "-"
		}
		all = append(all, l)
		fmt.Fprintf(&b, "%s %-23s  %s\n", mark, name, runtimeTitles[name])
	}
	printReasons(&b, "Unavailable here (-):", all, func(l listed) (string, string) { return l.Reason, l.Remedy })
	_, err := io.WriteString(w, b.String())
	return err
}

func printReasons(b *strings.Builder, title string, all []listed, why func(listed) (reason, remedy string)) {
	names := map[[2]string][]string{}
	var order [][2]string
	for _, l := range all {
		reason, remedy := why(l)
		if reason == "" {
			continue
		}
		key := [2]string{reason, remedy}
		if names[key] == nil {
			order = append(order, key)
		}
		names[key] = append(names[key], l.Network)
	}
	if len(order) == 0 {
		return
	}
	fmt.Fprintf(b, "\n%s\n", title)
	for _, key := range order {
		fmt.Fprint(b, term.Wrap(strings.Join(names[key], ", "), "  "))
		fmt.Fprint(b, term.Wrap(key[0], "      "))
		if key[1] != "" {
			fmt.Fprint(b, term.Wrap("→ "+key[1], "      "))
		}
	}
}
