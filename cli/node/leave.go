package node

import (
	"errors"
	"fmt"
	"net/http"
	"os"

	"cleat/cli/hint"
	"cleat/network/attach"
	"cleat/overlay"
	"cleat/overlay/control"

	"github.com/spf13/cobra"
)

func newLeave(dataplane NewDataplane) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "leave",
		Short: "take this host out of its cluster",
		Long: `Takes this host out of its cluster: its addresses are free, its key is worth
nothing any more, and networks that span hosts are removed here. If it has a
member of the registry, another host gets one first. Then this host may join
another cluster.

With --force it also disconnects containers from these networks, and the last
host leaves, too. If cleat-node does not run or the registry does not answer,
--force only cleans up this host: "cleat-node remove" on another one does the rest.`,
		Example: `  cleat-node leave`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if os.Geteuid() != 0 {
				return hint.With(errors.New("networks of hosts need root"), "sudo cleat-node leave")
			}
			return leave(cmd, dataplane, force)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "leave in any case, and disconnect containers")
	return cmd
}

func leave(cmd *cobra.Command, dataplane NewDataplane, force bool) error {
	ctx := cmd.Context()
	store, err := attach.OpenStore("")
	if err != nil {
		return err
	}
	dir := control.Dir(store.Path())
	settings, err := overlay.Load(dir)
	if err == nil && settings == nil {
		err = errors.New("this host belongs to no cluster")
	}
	if err != nil {
		return err
	}
	c := control.New(store.Path())
	switch err := c.Leave(ctx, force); {
	case errors.Is(err, control.ErrNotRunning) && !force && !settings.Removed:
		return hint.With(err, "or clean up this host only: cleat-node leave --force")
	case err != nil && !force:
		return err
	case err != nil:
		fmt.Fprintf(cmd.ErrOrStderr(), "cleat-node: the cluster does not know that this host leaves: %v\nOn another host: cleat-node remove %s\n", err, settings.Host)
	}
	if err := c.Do(ctx, http.MethodPost, "/down", nil, nil); err != nil && !errors.Is(err, control.ErrNotRunning) {
		return err
	}
	if err := waitEnded(ctx, dir); err != nil {
		return err
	}
	unlock, err := lock(dir)
	if err != nil {
		return err
	}
	defer unlock()
	d, err := dataplane(store, func(string, ...any) {})
	if err != nil {
		return err
	}
	if !force {
		if err := overlay.CheckUnused(ctx, d); err != nil {
			return hint.With(err, "cleat-node leave --force")
		}
	}
	if err := overlay.Discard(ctx, dir, d); err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "host %s has left cluster %s\n", settings.Host, settings.Cluster)
	return err
}
