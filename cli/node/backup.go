package node

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"cleat/cli/hint"
	"cleat/network/attach"
	"cleat/overlay"
	"cleat/overlay/control"

	"github.com/spf13/cobra"
)

func newBackup() *cobra.Command {
	return &cobra.Command{
		Use:   "backup FILE",
		Short: "write a copy of the registry to a file",
		Long: `Writes what the hosts have in common to a file, in the format of etcd's snapshots:
hosts, networks, and which host has which addresses. Only root may read the file.
Keys are not in it. "cleat-node restore" reads it.`,
		Example: `  cleat-node backup /var/backups/cleat.db`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := client()
			if err != nil {
				return err
			}
			return overlay.SaveBackup(args[0], func(to io.Writer) error { return c.Backup(cmd.Context(), to) })
		},
	}
}

func newRestore() *cobra.Command {
	return &cobra.Command{
		Use:   "restore FILE",
		Short: "restore the registry from a backup",
		Long: `Makes a new registry from a file of "cleat-node backup", on a host that has or had
a member of the registry, while cleat-node is down there. "cleat-node up" then
tells the other hosts, which go over to the new registry; those that are down do
so later. Containers notice nothing.

Each host registers again what it has and the backup lacks, and hosts that were
removed stay removed. So a restored registry has what was lost, and nothing that
exists is lost. The former registry of this host stays in the directory etcd.old.`,
		Example: `  cleat-node down
  cleat-node restore /var/backups/cleat.db
  cleat-node up`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if os.Geteuid() != 0 {
				return hint.With(errors.New("the registry belongs to root"), "sudo cleat-node restore FILE")
			}
			store, err := attach.OpenStore("")
			if err != nil {
				return err
			}
			file, err := filepath.Abs(args[0])
			if err != nil {
				return err
			}
			dir := control.Dir(store.Path())
			if s, err := overlay.Load(dir); err != nil || s == nil {
				return hint.With(errors.Join(err, errors.New("this host belongs to no cluster")), "restore on a host that has or had a member of the registry; `cleat-node status` on any host lists those")
			}
			unlock, err := lock(dir)
			if errors.Is(err, errRuns) {
				return hint.With(errors.New("cleat-node runs on this host"), "`cleat-node down`, then again")
			}
			if err != nil {
				return err
			}
			defer unlock()
			log := func(format string, args ...any) { fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...) }
			if err := overlay.Restore(cmd.Context(), dir, file, log); err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), "restored; `cleat-node up` starts with it and tells the other hosts")
			return err
		},
	}
}
