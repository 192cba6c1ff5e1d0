package term

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"cleat/internal/columns"
)

// Table writes rows of cells under a heading in columns. The cells may be others' words: a
// helper of another user's that root asks.
func Table(w io.Writer, heading string, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, heading)
	for _, cells := range rows {
		for i := range cells {
			cells[i] = columns.Plain(cells[i])
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	return t.Flush()
}

// Listing lines up cells for people. They may be others' words: names of containers and links,
// errors of engines.
type Listing struct{ *tabwriter.Writer }

func NewListing(out io.Writer) Listing { return Listing{tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)} }

// row writes one line. What goes wrong Flush tells.
func (t Listing) Row(cells ...string) {
	for i := range cells {
		cells[i] = columns.Plain(cells[i])
	}
	_, _ = io.WriteString(t, strings.Join(cells, "\t")+"\n")
}
