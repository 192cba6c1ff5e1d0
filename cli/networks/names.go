package networks

import (
	"fmt"

	"cleat/network/named"
	"cleat/network/names"

	"github.com/spf13/cobra"
)

const serveNames = "serve-names"

// NameServerArgs returns the command line of the name server's process.
func NameServerArgs() []string { return []string{Name, serveNames} }

// newNameServer returns the command that a keeper runs to serve the names of networks.
func newNameServer() *cobra.Command {
	return &cobra.Command{
		Use:    serveNames,
		Hidden: true,
		Short:  "serve the names of networks",
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config(cmd)
			if err != nil {
				return err
			}
			warn := func(err error) { fmt.Fprintf(cmd.ErrOrStderr(), "cleat: %v\n", err) }
			return names.Run(cmd.Context(), names.Config{Path: named.NameServerPath(named.Store{Store: cfg.Attach.Store}), Warn: warn})
		},
	}
}
