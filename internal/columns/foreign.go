package columns

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// hidden reports whether a rune could move a terminal's cursor, switch its modes, end a
// line, or change the order or look of the text beside it.
func hidden(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029'
}

// Plain replaces runes that could move a terminal's cursor or switch its modes, and joins
// lines.
func Plain(s string) string { return blank(s, hidden) }

// blank replaces the runes that which selects by blanks.
func blank(s string, which func(rune) bool) string {
	return strings.Map(func(r rune) rune {
		if which(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}

// PlainLines is Plain for text with several lines. It indents all but the first, so that
// foreign text can't imitate the beginning of another message.
func PlainLines(s string) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	for i := range lines {
		lines[i] = Plain(lines[i])
	}
	return strings.Join(lines, "\n  ")
}

// Word returns s as one word of a command line that is printed to be pasted into a shell.
// It is quoted unless all its characters are literal in a shell, and contains nothing
// that a terminal acts on: unprintable characters are written as bash, zsh and ksh read
// them ($'\x1b').
func Word(s string) string {
	if s != "" && strings.IndexFunc(s, special) < 0 && s[0] != '=' && s[0] != '~' {
		return s
	}
	if utf8.ValidString(s) && strings.IndexFunc(s, hidden) < 0 {
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	var b strings.Builder
	b.WriteString("$'")
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == '\'' || r == '\\':
			b.WriteString("\\" + s[:n])
		case hidden(r) || r == utf8.RuneError && n == 1:
			for _, c := range []byte(s[:n]) {
				fmt.Fprintf(&b, "\\%03o", c) // three digits, so that a digit that follows is not part of it
			}
		default:
			b.WriteString(s[:n])
		}
		s = s[n:]
	}
	return b.String() + "'"
}

// special reports whether a rune may have a meaning in a shell.
func special(r rune) bool {
	letter := unicode.IsLetter(r) && !unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r) // such as a Hangul filler, which looks blank
	return !letter && !unicode.IsDigit(r) && !strings.ContainsRune("_@%+=:,./-~", r)
}

// JSON returns a writer that writes JSON to w and escapes everything in strings that a
// terminal acts on, without changing their meaning. Each Write must consist of whole
// runes, as encoding/json's do.
func JSON(w io.Writer) io.Writer { return changer{w, escapeJSON} }

// changer changes what is written to it, and writes that to w.
type changer struct {
	w      io.Writer
	change func(string) string
}

func (c changer) Write(p []byte) (int, error) {
	if _, err := io.WriteString(c.w, c.change(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

func escapeJSON(s string) string {
	if strings.IndexFunc(s, escapes) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case !escapes(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// escapes reports whether a rune is hidden and not JSON white space. Inside strings
// encoding/json escapes white space itself.
func escapes(r rune) bool { return hidden(r) && r != '\n' && r != '\t' && r != '\r' }

// Text returns a writer that writes text with lines and tabs to w, and replaces
// everything else that a terminal acts on. Each Write must consist of whole runes.
func Text(w io.Writer) io.Writer { return changer{w, PlainText} }

// PlainText is Plain for text with lines and tabs.
func PlainText(s string) string {
	return blank(s, func(r rune) bool { return hidden(r) && r != '\n' && r != '\t' })
}
