package man

import (
	"strings"
)

// roffText escapes text, so that roff prints it as it is (groff_char(7), groff_man_style(7)).
// A full stop at the beginning of a line is not escaped.
func roffText(text string) string {
	return strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "~", `\(ti`, "^", `\(ha`).Replace(text)
}

// roffLine escapes a whole line. Text between backquotes is set in bold.
func roffLine(line string) string {
	parts := strings.Split(line, "`")
	var b strings.Builder
	for i, p := range parts {
		switch {
		case i%2 == 0:
			b.WriteString(roffText(p))
		case i == len(parts)-1: // no closing quote
			b.WriteString(roffText("`" + p))
		default:
			b.WriteString(`\fB` + roffText(p) + `\fR`)
		}
	}
	if strings.HasPrefix(line, ".") {
		return `\&` + b.String() + "\n"
	}
	return b.String() + "\n"
}

// roffParagraphs converts the text of a help. Paragraphs are filled; indented lines are kept
// as they are, two columns further left, because the page itself is indented.
func roffParagraphs(text string) string {
	var b strings.Builder
	kept, gap := false, false
	for line := range strings.Lines(strings.TrimSpace(text)) {
		line = strings.TrimRight(line, "\n")
		if line == "" {
			gap = true
			continue
		}
		switch indented := strings.HasPrefix(line, "  "); {
		case indented && !kept:
			b.WriteString(".PP\n.EX\n")
			kept = true
		case kept && !indented:
			b.WriteString(".EE\n.PP\n")
			kept = false
		case gap && kept:
			b.WriteString("\n")
		case gap:
			b.WriteString(".PP\n")
		}
		gap = false
		b.WriteString(roffLine(strings.TrimPrefix(line, "  ")))
	}
	if kept {
		b.WriteString(".EE\n")
	}
	return b.String()
}

// roffExample converts lines that are kept as they are, but for an indentation of two columns.
func roffExample(text string) string {
	text = strings.Trim(text, "\n")
	if text == "" {
		return ""
	}
	var b strings.Builder
	b.WriteString(".EX\n")
	for line := range strings.Lines(text) {
		b.WriteString(roffLine(strings.TrimPrefix(strings.TrimRight(line, "\n"), "  ")))
	}
	return b.String() + ".EE\n"
}
