package main

import (
	"io"
	"testing"

	"cleat/traffic"
)

// Names chosen by others are printed in as many lines as any, with nothing that a terminal
// acts on.
func TestHostileNamesTraffic(t *testing.T) {
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
			return (&trafficFlags{}).print(w, traffic.Result{Work: "tcp", Congestion: text, ProbeError: text, Warnings: []string{text}})
		},
		"traffic tcp --json": func(w io.Writer, text string) error {
			return (&trafficFlags{asJSON: true}).print(w, traffic.Result{Work: "tcp", Congestion: text, ProbeError: text, Warnings: []string{text}})
		},
	} {
		t.Run(name, func(t *testing.T) { checkPrint(t, print) })
	}
}
