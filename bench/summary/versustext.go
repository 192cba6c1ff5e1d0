package summary

import (
	"fmt"
	"io"
	"strings"
)

// Table writes a Versus in at most 80 columns, as long as names are short: a
// block of lines for each match. It returns the error of w.
func (v *Versus) Table(w io.Writer) error {
	var b strings.Builder
	for _, m := range v.Matches {
		b.WriteString(wrap("", "    ", m.Heading()))
		rows := [][]string{m.Heads()}
		for _, l := range m.Lines {
			rows = append(rows, m.Cells(l))
		}
		widths := columnWidths(rows)
		for i, row := range rows {
			b.WriteString(versusRow(row, widths))
			if i > 0 && m.Lines[i-1].Reason != "" {
				b.WriteString(wrap("    ", "    ", m.Lines[i-1].Reason))
			}
		}
		b.WriteByte('\n')
	}
	b.WriteString(wrap("", "  ", "×: the median over the baseline's, and over that of the best rival of "+v.Subject+
		", each with the interval of the ratio. ~: it can't be told apart from 1, after Holm's correction over all ratios here."))
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

func columnWidths(rows [][]string) []int {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, text := range row {
			widths[i] = max(widths[i], width(text))
		}
	}
	return widths
}

// versusRow sets one line: the median to the right, everything else to the left.
func versusRow(row []string, widths []int) string {
	var b strings.Builder
	for i, text := range row {
		if i == 1 {
			text = right(text, widths[i])
		}
		b.WriteString("  " + left(text, widths[i]))
	}
	return strings.TrimRight(b.String(), " ") + "\n"
}
