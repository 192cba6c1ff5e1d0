package summary

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/stats"
	"cleat/internal/columns"
)

// Table writes a Versus for a terminal, a block of lines for each match, in at most
// 80 columns as long as names are short.
func (v *Versus) Table(w io.Writer) error {
	var b strings.Builder
	for _, m := range v.Matches {
		b.WriteString(wrap("", "    ", m.Heading()+m.Samples()))
		rows := [][]string{m.Heads()}
		for _, l := range m.Lines {
			rows = append(rows, m.Cells(l))
		}
		widths := columns.Widths(rows)
		for i, row := range rows {
			b.WriteString("  " + columns.Row(row, widths, 1))
			if i > 0 && m.Lines[i-1].Reason != "" {
				b.WriteString(wrap("    ", "    ", m.Lines[i-1].Reason))
			}
		}
		if note := m.Note(); note != "" {
			b.WriteString(wrap("  ", "    ", note))
		}
		b.WriteByte('\n')
	}
	b.WriteString(wrap("", "  ", "×: the median over the baseline's, and over that of the best rival of "+v.Subject+
		", each with the 95 % interval of the ratio. ~: can't be told apart from 1, after Holm's correction over all pairs here. "+
		"Intervals are not corrected, so that 1 may lie outside one beside a ~."))
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

// Markdown writes a Versus as one table, with a row for each match that has a
// number of the subject and a column for the ratio of that to each rival.
func (v *Versus) Markdown(w io.Writer) error {
	rivals := v.rivals()
	rows := [][]string{{"", v.Subject, "baseline", "best rival", "× baseline"}}
	for _, r := range rivals {
		rows[0] = append(rows[0], "× "+r)
	}
	escape := strings.NewReplacer("|", `\|`, "<", "&lt;", "&", "&amp;")
	var b, notes strings.Builder
	for _, m := range v.Matches {
		subject, ok := m.line(v.Subject)
		if !ok || subject.Reason != "" {
			continue
		}
		if note := m.Note(); note != "" {
			notes.WriteString("\n" + escape.Replace(columns.Plain(m.Heading()+": "+note)) + "\n")
		}
		cells := m.Cells(subject)
		if subject.CILevel < stats.Confidence {
			cells[2] = ""
		}
		row := []string{m.Heading(), strings.TrimSpace(cells[1] + " " + cells[2]), m.named(m.Baseline), m.named(m.BestRival), cmp.Or(cells[3], cell.None)}
		for _, r := range rivals {
			l, _ := m.line(r)
			row = append(row, cmp.Or(l.OfSubject.text(), cell.None))
		}
		rows = append(rows, row)
	}
	for i, row := range rows {
		for k := range row {
			row[k] = escape.Replace(columns.Plain(row[k]))
		}
		b.WriteString("| " + strings.Join(row, " | ") + " |\n")
		if i == 0 {
			b.WriteString(strings.Repeat("|---", len(row)) + "|\n")
		}
	}
	if _, err := io.WriteString(w, b.String()+notes.String()); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

// rivals returns the networks that have a number beside one of the subject's, in
// catalogue order.
func (v *Versus) rivals() []string {
	var names []string
	for _, m := range v.Matches {
		for _, l := range m.Lines {
			if l.OfSubject.Value > 0 && !slices.Contains(names, l.Network) {
				names = append(names, l.Network)
			}
		}
	}
	slices.SortFunc(names, catalog.Compare)
	return names
}

func (m Match) line(network string) (VersusLine, bool) {
	for _, l := range m.Lines {
		if l.Network == network {
			return l, true
		}
	}
	return VersusLine{}, false
}

// named returns a network with its median; None for no network.
func (m Match) named(network string) string {
	l, ok := m.line(network)
	if !ok {
		return cell.None
	}
	return network + " " + m.Cells(l)[1]
}
