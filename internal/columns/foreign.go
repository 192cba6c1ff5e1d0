package columns

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// hidden reports whether a rune could move a terminal's cursor, switch its modes, end a line,
// or change the order or look of what is beside it.
func hidden(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029'
}

// Plain replaces what could move a terminal's cursor or switch its modes, and
// joins lines.
func Plain(s string) string {
	s = strings.ToValidUTF8(s, "?")
	return strings.Map(func(r rune) rune {
		if hidden(r) {
			return ' '
		}
		return r
	}, s)
}

// PlainLines is Plain for text that has lines of its own. Each but the first is indented, so
// that none from elsewhere can pass for the beginning of another message.
func PlainLines(s string) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	for i := range lines {
		lines[i] = Plain(lines[i])
	}
	return strings.Join(lines, "\n  ")
}

// Word is s as one word of a command line that is printed to be pasted into a shell: quoted
// unless no character in it means anything there, and without any that could do something to
// the terminal. What can't be printed is written as bash, zsh and ksh read it ($'\x1b').
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
				fmt.Fprintf(&b, "\\%03o", c) // three digits: what comes next is no part of it
			}
		default:
			b.WriteString(s[:n])
		}
		s = s[n:]
	}
	return b.String() + "'"
}

// special reports whether a rune may mean something to a shell.
func special(r rune) bool {
	letter := unicode.IsLetter(r) && !unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r) // such as a blank that is none
	return !letter && !unicode.IsDigit(r) && !strings.ContainsRune("_@%+=:,./-~", r)
}

// JSON writes JSON to w in which strings have nothing that could do something to a terminal:
// it is escaped, so that it means the same. Each Write must be of whole runes, as those of
// encoding/json are.
func JSON(w io.Writer) io.Writer { return jsonWriter{w} }

type jsonWriter struct{ w io.Writer }

func (j jsonWriter) Write(p []byte) (int, error) {
	if strings.IndexFunc(string(p), escapes) < 0 {
		return j.w.Write(p)
	}
	var b strings.Builder
	for _, r := range string(p) {
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
	if _, err := io.WriteString(j.w, b.String()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// escapes reports whether a rune is hidden and not JSON's own white space: inside of strings
// encoding/json escapes those.
func escapes(r rune) bool { return hidden(r) && r != '\n' && r != '\t' && r != '\r' }

// Text writes text that has lines and tabs of its own to w, and replaces what else a terminal
// acts on. Each Write must be of whole runes.
func Text(w io.Writer) io.Writer { return textWriter{w} }

type textWriter struct{ w io.Writer }

func (t textWriter) Write(p []byte) (int, error) {
	if _, err := io.WriteString(t.w, PlainText(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// PlainText is Plain for text that has lines and tabs of its own.
func PlainText(s string) string {
	return strings.Map(func(r rune) rune {
		if hidden(r) && r != '\n' && r != '\t' {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}
