package keep

import (
	"fmt"
	"io"

	"cleat/internal/columns"
	"cleat/network/attach"
	"cleat/network/keep"
	"cleat/network/named"

	"github.com/spf13/cobra"
)

// down stops the keeper and takes everything down that is in the state directory.
func down(cmd *cobra.Command, cfg attach.Config) error {
	if _, managed := keep.AtBoot(cfg.Store); managed && cfg.Store.IsDefault() {
		_ = systemctl("stop", keep.UnitName) // fails if there is no unit; systemd may restart what Stop ends
	}
	if err := keep.Stop(cmd.Context(), cfg.Store); err != nil {
		return err
	}
	done, err := named.TakeDown(cmd.Context(), named.Config{Attach: cfg})
	if done == nil {
		return err
	}
	text := fmt.Sprintf("%s and %s are down; `cleat keep` brings back what it keeps\n", columns.Plural(done.Networks, "network"), columns.Plural(done.Attachments, "link"))
	if done.Networks+done.Attachments == 0 {
		text = "there was nothing to take down\n"
	}
	for _, n := range done.Notes {
		text += "note: " + columns.Plain(n) + "\n"
	}
	_, writeErr := io.WriteString(cmd.OutOrStdout(), text)
	if err == nil {
		err = writeErr
	}
	return err
}
