package columns

import (
	"bufio"
	"fmt"
	"io"
)

// A Printer prints text that has labels left of it, wrapped to 80 columns. It keeps the first
// error for Flush. Labels and text may be anybody's words: Plain is applied to them.
type Printer struct{ w *bufio.Writer }

const (
	labelWidth = 9
	textWidth  = 80 - labelWidth
)

// NewPrinter returns a Printer that writes to w.
func NewPrinter(w io.Writer) *Printer { return &Printer{bufio.NewWriter(w)} }

// Line prints one line, however long it is.
func (p *Printer) Line(label, text string) {
	fmt.Fprintf(p.w, "%-*s%s\n", labelWidth, Plain(label), Plain(text))
}

// Item prints text wrapped, with the label left of its first line, and nothing for an empty
// text.
func (p *Printer) Item(label, text string) { p.Hang(label, "", text) }

// Hang prints text wrapped, with the label and then the mark left of its first line, and blanks
// left of the others.
func (p *Printer) Hang(label, mark, text string) {
	for _, line := range Break(text, textWidth-Of(mark)) {
		p.Line(label, mark+line)
		label, mark = "", Pad("", Of(mark), false)
	}
}

// Blank prints an empty line.
func (p *Printer) Blank() { p.w.WriteByte('\n') }

// Flush writes what is buffered, and returns the first error.
func (p *Printer) Flush() error { return p.w.Flush() }
