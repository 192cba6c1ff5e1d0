package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"cleat/internal/columns"
	"cleat/network/attach"
	"cleat/network/keep"

	"github.com/spf13/cobra"
)

// keeperReport is what `cleat keep --status --json` prints.
type keeperReport struct {
	Running     bool            `json:"running"`
	Starting    bool            `json:"starting,omitempty"` // one was started a moment ago
	PID         int             `json:"pid,omitempty"`
	Log         string          `json:"log,omitempty"` // of those started on demand; "": there is none
	Attachments []attach.Status `json:"attachments"`   // those that are kept
}

func printKeeper(cmd *cobra.Command, store *attach.Store, asJSON bool) error {
	all, err := attach.List(cmd.Context(), store)
	r := keeperReport{Attachments: orEmpty(slices.DeleteFunc(all, func(s attach.Status) bool { return !s.NeedsKeeper() }))}
	state := keep.StateOf(store)
	r.Running, r.Starting, r.PID = state.Running, state.Starting, state.PID
	if _, missing := os.Stat(keep.LogFile(store)); missing == nil {
		r.Log = keep.LogFile(store)
	}
	print := func() error { return r.print(cmd) }
	if asJSON {
		print = func() error { return writeJSONLine(cmd.OutOrStdout(), r) }
	}
	return attachError(errors.Join(print(), err))
}

func (r keeperReport) print(cmd *cobra.Command) error {
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
		fmt.Fprintf(out, "log of those that `cleat attach` started: %s\n", columns.Plain(r.Log))
	}
	if len(r.Attachments) == 0 {
		_, err := fmt.Fprintln(out, "nothing is to be kept")
		return err
	}
	t := newListing(out)
	t.row("CONTAINER", "LINK", "STATE", "LAST DONE", "WHEN", "TROUBLE")
	attachments := attachmentsOf(r.Attachments)
	for _, s := range r.Attachments {
		did, at, trouble := keeperTexts(s.Keeper)
		t.row(containerWord(s.Attachment, attachments), s.Spec.Name, string(s.State), orDash(did), orDash(at), orDash(trouble))
	}
	return t.Flush()
}

// keeperTexts are what a keeper did last, when, and what it can't do; "" for none.
func keeperTexts(r *attach.KeeperReport) (did, at, trouble string) {
	if r == nil {
		return "", "", ""
	}
	if !r.ActionTime.IsZero() {
		at = clockText(r.ActionTime)
	}
	if r.Error != "" {
		trouble = r.Error
		if r.Failures > 1 {
			trouble += fmt.Sprintf(" (%d times since %s)", r.Failures, clockText(r.FailingSince))
		}
	}
	return r.Action, at, trouble
}

func clockText(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05") }
