package host

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"

	"cleat/bench/cell"
	terminal "cleat/internal/columns"
)

// columns is the width of text for people. Things to paste are never broken.
const columns = 80

// label is the width of what stands left of the text.
const label = 9

// WriteText prints the fingerprint in brief.
func (h Host) WriteText(w io.Writer) error {
	p := newPrinter(w)
	k := []string{"Linux " + h.Kernel.Release}
	if h.Kernel.Preempt != "" {
		k = append(k, "preemption "+h.Kernel.Preempt)
	}
	if h.Kernel.Accounting != "" {
		k = append(k, "CPU accounting "+h.Kernel.Accounting)
	}
	p.item("kernel", strings.Join(append(k, h.Distribution), ", "))
	c := []string{h.CPU.Model, cell.Plural(h.CPU.Online, "CPU")}
	if h.CPU.Cores > 0 {
		c = append(c, cell.Plural(h.CPU.Cores, "core"))
	}
	if len(h.CPU.Governors) > 0 {
		c = append(c, "governor "+strings.Join(h.CPU.Governors, "/"))
	}
	if h.Virtualization.Hypervisor {
		c = append(c, strings.Join(strings.Fields("virtual "+h.Virtualization.Vendor+" "+h.Virtualization.Product), " "))
	}
	if h.ClockSource != "" {
		c = append(c, "clock "+h.ClockSource)
	}
	p.item("cpu", strings.Join(c, ", "))
	p.item("memory", fmt.Sprintf("%.1f GiB, %.1f available", gib(h.Memory.Total), gib(h.Memory.Available)))
	p.item("network", fmt.Sprintf("TCP %s, queueing %s", orUnknown(h.Sysctls["net.ipv4.tcp_congestion_control"]), orUnknown(h.Sysctls["net.core.default_qdisc"])))
	for n, i := range h.Interfaces {
		name := ""
		if n == 0 {
			name = "links"
		}
		p.item(name, i.brief())
	}
	p.item("load", fmt.Sprintf("%.2f CPUs by others, %.2f softirq, %.2f stolen", h.Load.Foreign, h.Load.SoftIRQ, h.Load.Steal))
	return p.flush()
}

// brief is a link in one line.
func (i Interface) brief() string {
	words := []string{i.Name, i.Kind}
	if i.Driver != "" && i.Driver != i.Kind {
		words = append(words, i.Driver)
	}
	words = append(words, fmt.Sprintf("mtu %d", i.MTU))
	if i.Qdisc != "" {
		words = append(words, i.Qdisc)
	}
	if i.SpeedMbit > 0 {
		words = append(words, fmt.Sprintf("nominal %s", bitRate(i.SpeedMbit)))
	}
	if !i.Up {
		words = append(words, "down")
	}
	return strings.Join(words, " ")
}

// bitRate writes what ethtool gives in Mbit/s.
func bitRate(mbit int) string {
	if mbit >= 1000 {
		return fmt.Sprintf("%g Gbit/s", float64(mbit)/1000)
	}
	return fmt.Sprintf("%d Mbit/s", mbit)
}

func gib(bytes uint64) float64 { return float64(bytes) / (1 << 30) }

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

// WriteFindings prints findings as Diagnose sorts them: what is wrong in full,
// what is fine in one list, and what could not be read.
func WriteFindings(w io.Writer, findings []Finding, unreadable []string) error {
	p := newPrinter(w)
	var ok []string
	for _, f := range findings {
		if f.Severity == OK {
			ok = append(ok, f.ID)
			continue
		}
		p.item(string(f.Severity), f.Title)
		p.item("", f.Detail)
		p.item("", f.spoils())
		if f.Fix != "" {
			p.line("", "$ "+f.Fix)
		}
		p.blank()
	}
	if len(ok) > 0 {
		p.item("ok", strings.Join(slices.Compact(ok), ", "))
	}
	if len(unreadable) > 0 {
		p.item("unread", strings.Join(unreadable, ", "))
	}
	return p.flush()
}

// spoils says in words what the finding matters for.
func (f Finding) spoils() string {
	what := map[string]string{SpoilsMeasurement: "measurements", SpoilsNetwork: "networks", SpoilsBoth: "measurements and networks"}[f.Spoils]
	switch {
	case what == "":
		return ""
	case f.Severity == Note:
		return "Matters for " + what + "."
	}
	return "Spoils " + what + "."
}

// printer writes labelled, wrapped text and keeps the first error.
type printer struct{ w *bufio.Writer }

func newPrinter(w io.Writer) *printer { return &printer{bufio.NewWriter(w)} }

func (p *printer) blank() { p.w.WriteByte('\n') }

func (p *printer) flush() error { return p.w.Flush() }

// line prints one line, in which names may be whatever somebody chose.
func (p *printer) line(name, text string) {
	fmt.Fprintf(p.w, "%-*s%s\n", label, terminal.Plain(name), terminal.Plain(text))
}

// item prints text wrapped, with the name left of its first line.
func (p *printer) item(name, text string) {
	for _, l := range wrap(text, columns-label) {
		p.line(name, l)
		name = ""
	}
}

// wrap breaks text at spaces into lines of at most width characters; a longer
// word stays whole.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case len([]rune(line))+1+len([]rune(word)) <= width:
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
