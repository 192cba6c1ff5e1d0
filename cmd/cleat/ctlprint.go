package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"cleat/sandbox/control"
)

// table writes rows of cells under a heading in columns.
func table(w io.Writer, heading string, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, heading)
	for _, cells := range rows {
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	return t.Flush()
}

// helpersText is `cleat ctl ls`.
func helpersText(w io.Writer, all []control.Info) error {
	var rows [][]string
	for _, i := range all {
		what := strings.Join(i.Command, " ")
		if what == "" {
			what = "serves " + i.Namespace
		}
		rows = append(rows, []string{printable(i.Name), fmt.Sprint(i.PID), fmt.Sprint(i.UID), i.Started.Format(time.DateTime), printable(what)})
	}
	return table(w, "NAME\tPID\tUID\tSTARTED\tCOMMAND", rows)
}

// flowsText is `cleat ctl flows`.
func flowsText(w io.Writer, flows []control.Flow, now time.Time) error {
	var rows [][]string
	for _, f := range flows {
		direction := "out"
		if f.Inbound {
			direction = "in"
		}
		to := f.Destination.String()
		if f.Name != "" {
			to += " (" + printable(f.Name) + ")"
		}
		if f.Host.IsValid() && f.Host != f.Destination && !f.Inbound {
			to += " via " + f.Host.String()
		}
		rows = append(rows, []string{f.Protocol, direction, f.Source.String(), to, f.State, f.Tier,
			now.Sub(f.Started).Truncate(time.Second).String(), byteText(f.OutBytes), byteText(f.InBytes)})
	}
	return table(w, "PROTOCOL\tBEGAN\tFROM\tTO\tSTATE\tTIER\tAGE\tOUTBOUND\tINBOUND", rows)
}

// forwardsText is `cleat ctl forward ls`.
func forwardsText(w io.Writer, all []control.Forward) error {
	var rows [][]string
	for _, f := range all {
		at := f.Listen.String()
		if f.Interface != "" {
			at += " on " + printable(f.Interface)
		}
		by := "given"
		if f.Auto {
			by = "auto"
		}
		rows = append(rows, []string{f.Protocol, at, fmt.Sprint(f.To.Port), by})
	}
	return table(w, "PROTOCOL\tHOST\tINSIDE\tBY", rows)
}

// printable keeps control characters, which a name or a command's arguments may
// hold, from the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
}
