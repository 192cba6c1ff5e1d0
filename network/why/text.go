package why

import (
	"io"

	"cleat/internal/columns"
)

// nameWidth is the width of the names of checks.
const nameWidth = 11

// WriteText prints the checks one below the other, then the verdict, and what to type.
func (a *Answer) WriteText(w io.Writer) error {
	p := columns.NewPrinter(w)
	if a.Host != "" {
		p.Hang(string(OK), columns.Pad(checkHosts, nameWidth, false), a.From+" is on host "+a.Host+", which has tried what follows")
	}
	last := ""
	for _, c := range a.Checks {
		name := c.Name
		if name == last {
			name = ""
		}
		last = c.Name
		p.Hang(string(c.State), columns.Pad(name, nameWidth, false), c.Text)
	}
	p.Blank()
	if err := p.Flush(); err != nil {
		return err
	}
	text := columns.Paragraph("", "", columns.Plain(a.Verdict), width)
	if a.Try != "" {
		text += "try: " + columns.Plain(a.Try) + "\n" // one line, to be pasted
	}
	_, err := io.WriteString(w, text)
	return err
}

const width = 80
