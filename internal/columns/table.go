package columns

import (
	"slices"
	"strings"
)

// Paragraph wraps text to lines of at most width columns, as Break does. The first line begins
// with head, the others with indent.
func Paragraph(head, indent, text string, width int) string {
	var b strings.Builder
	lines := wrap(text, width-Of(head), width-Of(indent), whole)
	b.WriteString(head)
	b.WriteString(strings.Join(lines, "\n"+indent))
	return strings.TrimRight(b.String(), " ") + "\n"
}

// Gap is the number of blanks between the columns of a table.
const Gap = 2

// Widths returns the width of each column of rows, whose cells must be equal in number.
func Widths(rows [][]string) []int {
	var widths []int
	for _, row := range rows {
		widths = append(widths, make([]int, max(0, len(row)-len(widths)))...)
		for i, text := range row {
			widths[i] = max(widths[i], Of(Plain(text)))
		}
	}
	return widths
}

// Row returns one line of a table: cells padded to the widths, those in the columns of right
// on the left. Plain is applied to cells, so that none can forge a line.
func Row(cells []string, widths []int, right ...int) string {
	padded := make([]string, len(cells))
	for i, text := range cells {
		padded[i] = Pad(Plain(text), widths[i], slices.Contains(right, i))
	}
	return strings.TrimRight(strings.Join(padded, strings.Repeat(" ", Gap)), " ") + "\n"
}
