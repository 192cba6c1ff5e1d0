package term

import (
	"io"
	"strings"
	"text/tabwriter"

	"cleat/internal/columns"
)

// A Table aligns cells in columns. Cells may be text that others chose.
type Table struct{ w *tabwriter.Writer }

// NewTable returns a table that Flush writes to w.
func NewTable(w io.Writer) Table { return Table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)} }

// Row adds a row. Flush returns its error, if any.
func (t Table) Row(cells ...string) {
	for i := range cells {
		cells[i] = columns.Plain(cells[i])
	}
	_, _ = io.WriteString(t.w, strings.Join(cells, "\t")+"\n")
}

// Flush writes the table.
func (t Table) Flush() error { return t.w.Flush() }
