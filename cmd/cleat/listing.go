package main

import (
	"encoding/json"
	"io"
	"strings"
	"text/tabwriter"

	"cleat/internal/columns"
)

// listing lines up cells for people. They may be others' words: names of containers and links,
// errors of engines.
type listing struct{ *tabwriter.Writer }

func newListing(out io.Writer) listing { return listing{tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)} }

// row writes one line. What goes wrong Flush tells.
func (t listing) row(cells ...string) {
	for i := range cells {
		cells[i] = columns.Plain(cells[i])
	}
	_, _ = io.WriteString(t, strings.Join(cells, "\t")+"\n")
}

// writeJSONLine writes a value as one line of JSON, in which a terminal finds nothing to act
// on.
func writeJSONLine(out io.Writer, v any) error {
	return json.NewEncoder(columns.JSON(out)).Encode(v)
}
