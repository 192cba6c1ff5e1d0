package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"cleat/cli/term"
	"cleat/tunnel/control"

	"github.com/spf13/cobra"
)

func newList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "list the running tunnels",
		Long: `Lists the running tunnels of this network namespace that the user may control:
the user's own, and for root all.`,
		Example: "  cleat tunnel ls\n  cleat tunnel ls --json | jq -r '.[].name'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := control.List(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return term.WriteJSON(cmd.OutOrStdout(), term.OrEmpty(all))
			}
			return listText(cmd.OutOrStdout(), all)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON array of what `cleat tunnel status --json` prints")
	return cmd
}

// listText prints the output of `cleat tunnel ls`.
func listText(w io.Writer, all []control.Status) error {
	t := term.NewTable(w)
	t.Row("NAME", "DEVICE", "STATE", "LIVE", "PID", "UID", "STARTED", "FILE")
	for _, s := range all {
		live := 0
		for _, p := range s.Paths {
			if p.State == control.Live {
				live++
			}
		}
		t.Row(s.Name, s.Device, string(s.State), fmt.Sprintf("%d of %d", live, len(s.Paths)),
			fmt.Sprint(s.PID), fmt.Sprint(s.UID), s.Started.Local().Format(time.DateTime), term.OrDash(s.File))
	}
	return t.Flush()
}

const watchEvery = time.Second

func newStatus() *cobra.Command {
	var asJSON, watch bool
	cmd := onRunning(&cobra.Command{
		Use:   "status [NAME]",
		Short: "show the status of a running tunnel and its paths",
		Long: `Shows the status of a running tunnel. For each path: state, delivery rate, share
of the total, rate at which it may be sent to, bytes delivered, loss, round-trip
time, one-way delay beyond that of the fastest path, and the queue standing in
it. Below: counters since the start, or with --watch of the last second.
doc/tunnel.md describes the columns. NAME is needed if several tunnels run.`,
		Example: "  cleat tunnel status\n  cleat tunnel status office --watch\n  cleat tunnel status --json | jq '.paths[].state'",
	}, func(cmd *cobra.Command, c *control.Client) error {
		if watch {
			return watchStatus(cmd.Context(), c, cmd.OutOrStdout(), term.IsTerminal(os.Stdout), watchEvery)
		}
		s, err := c.Status(cmd.Context())
		if err != nil {
			return err
		}
		if asJSON {
			return term.WriteJSON(cmd.OutOrStdout(), s)
		}
		_, err = io.WriteString(cmd.OutOrStdout(), statusText(s, nil))
		return err
	})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&watch, "watch", false, "refresh every second, with the rates of that second")
	cmd.MarkFlagsMutuallyExclusive("json", "watch")
	return cmd
}

// statusClient is the part of control.Client that watchStatus needs.
type statusClient interface {
	Status(context.Context) (control.Status, error)
}

// watchStatus prints the status at an interval, until ctx or the tunnel ends: in place on
// a terminal, otherwise in blocks, each followed by an empty line.
func watchStatus(ctx context.Context, c statusClient, w io.Writer, terminal bool, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	before, err := c.Status(ctx)
	if err != nil {
		return err
	}
	if terminal {
		if _, err := io.WriteString(w, clearScreen); err != nil {
			return err
		}
	}
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		now, err := c.Status(ctx)
		switch {
		case errors.Is(err, control.ErrNotRunning):
			return fmt.Errorf("watch tunnel %q: it has ended", before.Name)
		case err != nil:
			return err
		}
		base := &before
		if !now.Started.Equal(before.Started) {
			base = nil // a new tunnel of that name, which counts from 0
		}
		text := statusText(now, base) + "\n"
		if terminal {
			text = inPlace(text)
		}
		if _, err := io.WriteString(w, text); err != nil {
			return err
		}
		before = now
	}
}

// Control sequences of ECMA-48, which all terminals in use support.
const (
	clearScreen = "\x1b[2J"
	home        = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

// inPlace returns text that overwrites the terminal's contents. Clearing the terminal
// first would make it flicker.
func inPlace(text string) string {
	return home + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", clearLine+"\n") + clearBelow
}
