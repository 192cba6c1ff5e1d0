package traffic

import (
	"io"
	"testing"

	"cleat/cli/term/termtest"
	"cleat/traffic"
)

// Text that others chose is printed in as many lines as any other text, and without
// characters that a terminal acts on.
func TestHostileNames(t *testing.T) {
	for name, print := range map[string]func(w io.Writer, text string) error{
		"traffic serve": func(w io.Writer, text string) error {
			newAnnouncer(w, false).done(traffic.Served{Work: traffic.TCP, Client: text, Error: text})
			return nil
		},
		"traffic serve --json": func(w io.Writer, text string) error {
			newAnnouncer(w, true).done(traffic.Served{Work: traffic.TCP, Client: text, Error: text})
			return nil
		},
		"traffic tcp": func(w io.Writer, text string) error {
			return (&flags{}).print(w, traffic.Result{Work: "tcp", Congestion: text, ProbeError: text, Warnings: []string{text}})
		},
		"traffic tcp --json": func(w io.Writer, text string) error {
			return (&flags{asJSON: true}).print(w, traffic.Result{Work: "tcp", Congestion: text, ProbeError: text, Warnings: []string{text}})
		},
	} {
		t.Run(name, func(t *testing.T) { termtest.CheckPrint(t, print) })
	}
}
