package keep

import (
	"errors"
	"fmt"
	"os"
	"slices"

	attachcmd "cleat/cli/attach"
	"cleat/cli/term"
	"cleat/internal/columns"
	"cleat/network/attach"
	"cleat/network/keep"

	"github.com/spf13/cobra"
)

// report is the output of `cleat keep --status --json`.
type report struct {
	Running     bool            `json:"running"`
	Starting    bool            `json:"starting,omitempty"` // one was started a moment ago
	PID         int             `json:"pid,omitempty"`
	Log         string          `json:"log,omitempty"` // of keepers that attach started, if it exists
	Attachments []attach.Status `json:"attachments"`
}

// printStatus writes whether a keeper runs, and the state of what it keeps.
func printStatus(cmd *cobra.Command, store *attach.Store, asJSON bool) error {
	all, err := attach.List(cmd.Context(), store)
	r := report{Attachments: term.OrEmpty(slices.DeleteFunc(all, func(s attach.Status) bool { return !s.NeedsKeeper() }))}
	state := keep.StateOf(store)
	r.Running, r.Starting, r.PID = state.Running, state.Starting, state.PID
	if _, missing := os.Stat(keep.LogFile(store)); missing == nil {
		r.Log = keep.LogFile(store)
	}
	print := func() error { return r.print(cmd) }
	if asJSON {
		print = func() error { return term.WriteJSONLine(cmd.OutOrStdout(), r) }
	}
	return attachcmd.WithHint(errors.Join(print(), err))
}

func (r report) print(cmd *cobra.Command) error {
	out := cmd.OutOrStdout()
	switch {
	case r.Running && r.PID != 0:
		fmt.Fprintf(out, "a keeper runs, process %d\n", r.PID)
	case r.Running:
		fmt.Fprintln(out, "a keeper runs")
	case r.Starting:
		fmt.Fprintln(out, "a keeper is starting")
	default:
		fmt.Fprintln(out, "no keeper runs")
	}
	if r.Log != "" {
		fmt.Fprintf(out, "log of keepers that `cleat attach` started: %s\n", columns.Plain(r.Log))
	}
	if len(r.Attachments) == 0 {
		_, err := fmt.Fprintln(out, "there is nothing to keep")
		return err
	}
	t := term.NewTable(out)
	t.Row("CONTAINER", "LINK", "STATE", "LAST ACTION", "TIME", "ERROR")
	attachments := attachcmd.Attachments(r.Attachments)
	for _, s := range r.Attachments {
		action, at, failure := attachcmd.KeeperTexts(s.Keeper)
		t.Row(attachcmd.ContainerName(s.Attachment, attachments), s.Spec.Name, string(s.State), term.OrDash(action), term.OrDash(at), term.OrDash(failure))
	}
	return t.Flush()
}
