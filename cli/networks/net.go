package networks

import (
	"context"
	"encoding/json"
	"slices"

	"cleat/cli/container"
	"cleat/cli/help"
	"cleat/cli/hint"
	"cleat/cli/term"
	"cleat/network/keep"
	"cleat/network/named"

	"github.com/spf13/cobra"
)

// Name is the name of the command net.
const Name = "net"

// New returns the command net with all commands below it.
func New() *cobra.Command {
	cmd := &cobra.Command{
		Use:   Name + " COMMAND",
		Short: "networks of containers: addresses, names, ports, rules",
		Long: `Makes networks of containers. A container of Docker, Podman, containerd or LXC,
or a plain network namespace, joins a network by its name, gets an address,
finds the others by name, publishes ports on the host, and is kept apart from
whom it must not reach. All changes are atomic, and outlast restarts of the
container and of the machine.

A keeper (` + "`cleat keep`" + `) answers the containers' DNS queries, connects them again
after a restart, and restores rules that somebody else removes. The first
network starts one.`,
		Example: `  # a network, two containers on it, and a port of one on the host
  cleat net create web
  cleat net connect web api --alias db
  cleat net connect web front -p 8080:80

  # who is on which network
  cleat net ls

  # why does front not reach api?
  cleat net why front api:5432`,
		Args: hint.NoCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddGroup(&cobra.Group{ID: groupNetworks, Title: "Networks"}, &cobra.Group{ID: groupContainers, Title: "Containers"})
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			cmd.AddCommand(c)
		}
	}
	add(groupNetworks, newCreate(), newRm(), newLs(), newInspect(), newApply(), newExport(), newCheck(), newPrune(), newCNIConf(), newPodmanConf())
	add(groupContainers, newConnect(), newDisconnect(), newPublish(), newUnpublish(), newAllow(), newDeny(), newPolicy(), newWhy())
	cmd.AddCommand(newNameServer(), newSyncRules(), newFastCounters())
	help.File(cmd, "/var/lib/cleat/networks", "networks and their containers, in JSON; CLEAT_STATE_DIR replaces /var/lib/cleat")
	return cmd
}

// Groups of commands in the help of net.
const (
	groupNetworks   = "networks"
	groupContainers = "containers"
)

// changing are the commands of net that change networks.
var changing = []string{"create", "rm", "connect", "disconnect", "publish", "unpublish", "allow", "deny", "prune", keep.SyncRulesCommand()[1]}

// Changes reports whether a command of net changes networks. args follow "net".
func Changes(args []string) bool {
	return len(args) > 0 && slices.Contains(changing, args[0])
}

// IsRule reports whether a command of net adds or removes one rule.
func IsRule(args []string) bool { return len(args) > 0 && (args[0] == "allow" || args[0] == "deny") }

// IsSync reports whether a command of net makes the rules in the kernel as the files say.
func IsSync(args []string) bool { return slices.Equal(args, []string{keep.SyncRulesCommand()[1]}) }

// IsCounters reports whether a command of net prints the packets that went the fast way.
func IsCounters(args []string) bool { return slices.Equal(args, []string{keep.CountersCommand()[1]}) }

// Shared is what commands share that a keeper runs.
type Shared struct {
	Rules named.Rules // instead of the table in the kernel, which only its owner can change
	Files *named.Files
	// Counters returns the packets that went the fast way, to be printed as JSON.
	Counters func() (any, error)
}

// sharedKey is the key of a Shared in a context.
type sharedKey struct{}

// WithShared returns a context for commands of net that a keeper runs.
func WithShared(ctx context.Context, s Shared) context.Context {
	return context.WithValue(ctx, sharedKey{}, s)
}

func config(cmd *cobra.Command) (named.Config, error) { return Config(cmd.Context()) }

// Config returns where networks are kept, for a command that a keeper runs (WithShared) or that runs by
// itself.
func Config(ctx context.Context) (named.Config, error) {
	cfg, err := container.Config()
	shared, _ := ctx.Value(sharedKey{}).(Shared) // zero: no keeper runs the command
	c := named.Config{Attach: cfg, Rules: shared.Rules, Files: shared.Files, Registrar: registrar{cfg.Store}}
	if shared.Rules == nil {
		c.SyncElsewhere = func(ctx context.Context) error { return keep.SyncRules(ctx, cfg.Store) }
	}
	return c, err
}

// newSyncRules returns the command that a keeper runs for commands that it does not run as a whole.
func newSyncRules() *cobra.Command {
	return &cobra.Command{
		Use:    keep.SyncRulesCommand()[1],
		Hidden: true,
		Short:  "make the rules in the kernel as the files say",
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config(cmd)
			if err != nil {
				return err
			}
			return named.SyncRules(cmd.Context(), cfg)
		},
	}
}

// newFastCounters returns the command that a keeper runs for a node. Another process asks the keeper.
func newFastCounters() *cobra.Command {
	return &cobra.Command{
		Use:    keep.CountersCommand()[1],
		Hidden: true,
		Short:  "print the packets that went the fast way",
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			shared, _ := cmd.Context().Value(sharedKey{}).(Shared)
			if shared.Counters != nil {
				counters, err := shared.Counters()
				if err != nil {
					return err
				}
				return term.WriteJSONLine(cmd.OutOrStdout(), counters)
			}
			cfg, err := container.Config()
			var counters json.RawMessage
			if err == nil {
				err = keep.FastCounters(cmd.Context(), cfg.Store, &counters)
			}
			if err != nil {
				return err
			}
			return term.WriteJSONLine(cmd.OutOrStdout(), counters)
		},
	}
}
