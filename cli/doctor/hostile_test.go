package doctor

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"cleat/bench/host"
	"cleat/cli/term/termtest"
	"cleat/network/trace"
)

// Text that others chose is printed without characters that a terminal acts on.
func TestHostileNames(t *testing.T) {
	for name, print := range map[string]func(w io.Writer, text string) error{
		"doctor A B": func(w io.Writer, text string) error {
			return trace.Path{From: text, To: text, Warnings: []string{text}, Back: []string{text}, Hops: []trace.Hop{{Namespace: text, Link: text, Kind: text, Detail: text, Qdisc: text,
				Filters: []trace.Filter{{Table: text, Chain: text, Hook: text, Match: []trace.RuleHit{{Chain: text, Text: text}}}}}}}.WriteText(w)
		},
		"doctor": func(w io.Writer, text string) error {
			h := host.Host{Interfaces: []host.Interface{{Name: text, Kind: text, Driver: text}}, Versions: map[string]string{text: text}}
			return errors.Join(h.WriteText(w), host.WriteFindings(w, []host.Finding{{Severity: host.Warning, Title: text, Detail: text, Fix: text}}, []string{text}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := print(&out, termtest.Hostile); err != nil {
				t.Fatal(err)
			}
			termtest.Harmless(t, out.String())
		})
	}
}
