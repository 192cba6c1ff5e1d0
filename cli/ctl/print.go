package ctl

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"cleat/cli/run"
	"cleat/cli/term"
	"cleat/internal/columns"
	"cleat/sandbox/control"
)

// listText writes the table of `cleat ctl ls`.
func listText(w io.Writer, all []control.Info) error {
	t := term.NewTable(w)
	t.Row("NAME", "PID", "UID", "STARTED", "COMMAND")
	for _, i := range all {
		command := cmp.Or(strings.Join(i.Command, " "), "serves "+i.Namespace)
		t.Row(i.Name, fmt.Sprint(i.PID), fmt.Sprint(i.UID), i.Started.Format(time.DateTime), command)
	}
	return t.Flush()
}

// flowsText writes the table of `cleat ctl flows`.
func flowsText(w io.Writer, flows []control.Flow, now time.Time) error {
	t := term.NewTable(w)
	t.Row("PROTOCOL", "BEGAN", "FROM", "TO", "STATE", "TIER", "AGE", "OUTBOUND", "INBOUND")
	for _, f := range flows {
		direction := "out"
		if f.Inbound {
			direction = "in"
		}
		to := f.Destination.String()
		if f.Name != "" {
			to += " (" + f.Name + ")"
		}
		if f.Host.IsValid() && f.Host != f.Destination && !f.Inbound {
			to += " via " + f.Host.String()
		}
		t.Row(f.Protocol, direction, f.Source.String(), to, f.State, f.Tier,
			now.Sub(f.Started).Truncate(time.Second).String(), term.Bytes(f.OutBytes), term.Bytes(f.InBytes))
	}
	return t.Flush()
}

// forwardsText writes the table of `cleat ctl forward ls`.
func forwardsText(w io.Writer, all []control.Forward) error {
	t := term.NewTable(w)
	t.Row("PROTOCOL", "HOST", "INSIDE", "BY")
	for _, f := range all {
		at := f.Listen.String()
		if f.Interface != "" {
			at += " on " + f.Interface
		}
		by := "given"
		if f.Auto {
			by = "auto"
		}
		t.Row(f.Protocol, at, fmt.Sprint(f.To.Port), by)
	}
	return t.Flush()
}

// writeStats writes the output of `cleat ctl stats`.
func writeStats(w io.Writer, s control.Stats) error {
	_, err := io.WriteString(columns.Text(w), run.StatsText(s))
	return err
}

// noRules is the output for a policy without rules; as a comment, it is a valid policy file.
const noRules = "# no rules: everything but the built-in denials is allowed\n"

// writePolicy writes the output of `cleat ctl policy show`.
func writePolicy(w io.Writer, text string) error {
	_, err := io.WriteString(columns.Text(w), cmp.Or(text, noRules))
	return err
}
