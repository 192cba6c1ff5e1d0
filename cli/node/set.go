package node

import (
	"fmt"
	"time"

	"cleat/cli/hint"
	"cleat/overlay"
	"cleat/overlay/control"

	"github.com/spf13/cobra"
)

func newSet() *cobra.Command {
	var forget string
	cmd := &cobra.Command{
		Use:   "set",
		Short: "change settings of the cluster, or print them",
		Long: `Changes settings of the whole cluster, on any of its hosts. Without flags it prints
them.

--forget-after says how long a host must be dead until others may have its
addresses (24h by default). A host that is cut off that long, and runs, gives out
no addresses a while before that. When it is back, it gets its addresses again;
a container whose address another host has by then is disconnected.`,
		Example: `  cleat-node set
  cleat-node set --forget-after 72h
  cleat-node set --forget-after never`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("forget-after") {
				return printSettings(cmd)
			}
			after := control.Never
			if forget != "never" {
				var err error
				if after, err = time.ParseDuration(forget); err != nil || after < overlay.LeastForgetAfter {
					return hint.With(hint.Usagef("--forget-after %s: want a time of %s or more, or never", forget, overlay.LeastForgetAfter), "e.g. --forget-after 72h")
				}
			}
			c, err := client()
			if err != nil {
				return err
			}
			return c.ChangeCluster(cmd.Context(), control.Cluster{ForgetAfter: &after})
		},
	}
	cmd.Flags().StringVar(&forget, "forget-after", "", "how long a host must be dead until others may have its addresses: `TIME`, or never")
	return cmd
}

// printSettings prints the settings as flags have them.
func printSettings(cmd *cobra.Command) error {
	s, err := status(cmd.Context())
	if err != nil {
		return err
	}
	forget := "never"
	if s.ForgetAfter > 0 {
		forget = s.ForgetAfter.String()
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "--forget-after %s\n", forget)
	return err
}
