package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"cleat/cli/hint"
	"cleat/cli/term"
	"cleat/network/attach"
	"cleat/overlay"
	"cleat/overlay/control"
	"cleat/overlay/registry"

	"github.com/spf13/cobra"
)

func newDown(dataplane NewDataplane) *cobra.Command {
	var routes bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "stop taking part; networks and containers stay as they are",
		Long: `Ends the process that takes part in the cluster. Networks, containers and their
traffic stay as they are. With --routes the ways to other hosts' containers are
removed, too. "cleat-node up" continues.`,
		Example: `  cleat-node down

  # before the program is removed
  cleat-node down --routes && cleat keep --down`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, err := attach.OpenStore("")
			if err != nil {
				return err
			}
			err = control.New(store.Path()).Do(cmd.Context(), http.MethodPost, "/down", nil, nil)
			if err == nil {
				err = waitEnded(cmd.Context(), control.Dir(store.Path()))
			}
			if !routes || err != nil && !errors.Is(err, control.ErrNotRunning) {
				return err
			}
			d, err := dataplane(store, func(string, ...any) {})
			if err != nil {
				return err
			}
			return d.(overlay.Remover).Remove(cmd.Context())
		},
	}
	cmd.Flags().BoolVar(&routes, "routes", false, "also remove devices and routes to other hosts' containers, until the next up")
	return cmd
}

// waitEnded waits until no process takes part for a directory.
func waitEnded(ctx context.Context, dir string) error {
	for {
		unlock, err := lock(dir)
		if err == nil {
			unlock()
			return nil
		}
		if !errors.Is(err, errRuns) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func newToken() *cobra.Command {
	var valid time.Duration
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "token",
		Short: "print what another host needs to join",
		Long: `Prints a command that makes another host join. Whoever has the token in it can
join until it expires: treat it like a password.`,
		Example: `  cleat-node token
  cleat-node token --valid 10m`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if valid < time.Second {
				return hint.With(hint.Usagef("--valid %s: want a time of 1s or more", valid), "e.g. --valid 1h")
			}
			c, err := client()
			if err != nil {
				return err
			}
			t, err := c.Token(cmd.Context(), control.NewToken{Valid: valid})
			if err != nil {
				return err
			}
			if asJSON {
				return term.WriteJSONLine(cmd.OutOrStdout(), t)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "cleat-node up --token %s\n", t.Text)
			return err
		},
	}
	cmd.Flags().DurationVar(&valid, "valid", time.Hour, "how long it is valid")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

func newRemove() *cobra.Command {
	return &cobra.Command{
		Use:   "remove HOST",
		Short: "remove a host from the cluster, with its keys and addresses",
		Long: `Removes another host: it can't take part any more, and the addresses that it had
are free. Containers there are cut off. A host that was lost or stolen need not
run for this. To come back, type there "cleat-node down" and "cleat-node up" with
a new token. "cleat-node leave" is for the host on which it is typed.`,
		Example: `  cleat-node remove b`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := client()
			if err != nil {
				return err
			}
			return c.RemoveHost(cmd.Context(), args[0])
		},
	}
}

func newRotate() *cobra.Command {
	return &cobra.Command{
		Use:   "rotate",
		Short: "replace the keys of WireGuard of all hosts now, instead of once a day",
		Long: `Makes all hosts send with their next keys of WireGuard. No packet is lost. The keys
before are gone when all hosts have changed.`,
		Example: `  cleat-node rotate`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := client()
			if err != nil {
				return err
			}
			return c.Rotate(cmd.Context())
		},
	}
}

func newStatus() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "show the hosts and networks of the cluster, and what does not work",
		Long: `Shows which hosts are alive, by which way packets reach their containers and why,
and the networks, with the number of containers on each host. Notes say what
this host has corrected by itself, problems what does not work.

While the registry does not answer, all of it is as this host last knew it.`,
		Example: `  cleat-node status
  cleat-node status --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := status(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return term.WriteJSONLine(cmd.OutOrStdout(), s)
			}
			return printStatus(cmd, s)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

// differ reports whether hosts have different versions of the program.
func differ(hosts []control.HostStatus) bool {
	seen := map[string]bool{}
	for _, h := range hosts {
		if h.Program != "" {
			seen[h.Program] = true
		}
	}
	return len(seen) > 1
}

func printStatus(cmd *cobra.Command, s control.Status) error {
	out := cmd.OutOrStdout()
	answers := "answers"
	if !s.Registry.Answers {
		answers = "does not answer since " + term.Time(s.Registry.Since)
	}
	fmt.Fprintf(out, "cluster %s; %s %s (%s)\n\n", s.Cluster, registryName(s.Registry), answers, strings.Join(s.Registry.Members, ", "))
	if e := s.Encryption; e != nil {
		state := map[string]string{"": "between some hosts", registry.EncryptionOn: "on, between all hosts", registry.EncryptionPending: "pending; nothing is encrypted yet"}[e.State]
		fmt.Fprintf(out, "encryption: %s; keys of generation %d, since %s\n\n", state, e.Generation, term.Time(e.Since))
	}
	t := term.NewTable(out)
	t.Row("HOST", "ADDRESS", "STATE", "BY")
	mixed := differ(s.Hosts)
	for _, h := range s.Hosts {
		state := "alive"
		if !s.Registry.Answers && h.Name != s.Host {
			state = "unknown, was alive" // it is the registry that says who is
		}
		if mixed && h.Program != "" {
			state += ", version " + h.Program
		}
		if !h.Alive {
			state = "not alive"
			if !h.Since.IsZero() {
				state += " since " + term.Time(h.Since)
			}
		}
		by := h.By
		if h.Name == s.Host {
			by = "this host"
		}
		t.Row(h.Name, h.Address.String(), state, by)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	printReasons(out, s)
	if len(s.Networks) > 0 {
		fmt.Fprintln(out)
		t := term.NewTable(out)
		t.Row("NETWORK", "SUBNETS", "THIS HOST'S BLOCKS", "CONTAINERS")
		for _, n := range s.Networks {
			var counts []string
			for _, h := range slices.Sorted(maps.Keys(n.Endpoints)) {
				counts = append(counts, fmt.Sprintf("%s %d", h, n.Endpoints[h]))
			}
			t.Row(n.Name, list(n.Subnets), list(n.Blocks), term.OrDash(strings.Join(counts, ", ")))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if err := printPeers(out, s.Peers); err != nil {
		return err
	}
	for _, note := range s.Notes {
		fmt.Fprint(out, "\n"+term.Wrap("note: "+note, ""))
	}
	for _, p := range s.Problems {
		fmt.Fprint(out, "\n"+term.Wrap("problem: "+p, ""))
	}
	return nil
}

// printReasons prints why packets reach other hosts as they do: each reason once, with its hosts.
func printReasons(out io.Writer, s control.Status) {
	of := map[string][]string{}
	var reasons []string
	for _, h := range s.Hosts {
		if h.Name == s.Host || h.Why == "" {
			continue
		}
		reason := h.By + ": " + h.Why
		if of[reason] == nil {
			reasons = append(reasons, reason)
		}
		of[reason] = append(of[reason], h.Name)
	}
	for i, reason := range reasons {
		const most = 8
		hosts := of[reason]
		if more := len(hosts) - most; more > 0 {
			hosts = append(hosts[:most:most], fmt.Sprintf("and %d more", more))
		}
		if i == 0 {
			fmt.Fprintln(out)
		}
		fmt.Fprint(out, term.Wrap(strings.Join(hosts, ", ")+" by "+reason, ""))
	}
}

// registryName returns what answers, or does not.
func registryName(r control.RegistryStatus) string {
	switch {
	case len(r.URLs) > 0:
		return "the registry, etcd at " + strings.Join(r.URLs, ", ") + ","
	case r.External:
		return "the registry, an etcd that other hosts reach,"
	}
	return "the registry"
}

func printPeers(out io.Writer, all []control.Peer) error {
	if len(all) == 0 {
		return nil
	}
	fmt.Fprintln(out)
	t := term.NewTable(out)
	t.Row("BGP PEER", "AS", "STATE", "SENT", "RECEIVED", "ERROR")
	for _, p := range all {
		state := "no session"
		if p.Established {
			state = "established"
		}
		if !p.Since.IsZero() {
			state += " since " + term.Time(p.Since)
		}
		if p.BFD != "" {
			state += ", BFD " + p.BFD
		}
		t.Row(p.Address.String(), fmt.Sprint(p.AS), state, fmt.Sprint(p.Sent), fmt.Sprint(p.Received), term.OrDash(p.Error))
	}
	return t.Flush()
}

func list[T fmt.Stringer](all []T) string {
	var texts []string
	for _, v := range all {
		texts = append(texts, v.String())
	}
	return term.OrDash(strings.Join(texts, " "))
}
