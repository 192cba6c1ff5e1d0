package host

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"cleat/internal/columns"
)

// WriteText prints the main facts of the fingerprint.
func (h Host) WriteText(w io.Writer) error {
	p := columns.NewPrinter(w)
	k := []string{"Linux " + h.Kernel.Release}
	if h.Kernel.Preempt != "" {
		k = append(k, "preemption "+h.Kernel.Preempt)
	}
	if h.Kernel.Accounting != "" {
		k = append(k, "CPU accounting "+h.Kernel.Accounting)
	}
	p.Item("kernel", strings.Join(append(k, h.Distribution), ", "))
	c := []string{h.CPU.Model, columns.Plural(h.CPU.Online, "CPU")}
	if h.CPU.Cores > 0 {
		c = append(c, columns.Plural(h.CPU.Cores, "core"))
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
	p.Item("cpu", strings.Join(c, ", "))
	p.Item("memory", fmt.Sprintf("%.1f GiB, %.1f available", gib(h.Memory.Total), gib(h.Memory.Available)))
	p.Item("network", fmt.Sprintf("TCP %s, queueing %s", cmp.Or(h.Sysctls["net.ipv4.tcp_congestion_control"], "unknown"), cmp.Or(h.Sysctls["net.core.default_qdisc"], "unknown")))
	for n, i := range h.Interfaces {
		name := ""
		if n == 0 {
			name = "links"
		}
		p.Item(name, i.brief())
	}
	p.Item("load", fmt.Sprintf("%.2f CPUs by others, %.2f softirq, %.2f stolen", h.Load.Foreign, h.Load.SoftIRQ, h.Load.Steal))
	return p.Flush()
}

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

func bitRate(mbit int) string {
	if mbit >= 1000 {
		return fmt.Sprintf("%g Gbit/s", float64(mbit)/1000)
	}
	return fmt.Sprintf("%d Mbit/s", mbit)
}

func gib(bytes uint64) float64 { return float64(bytes) / (1 << 30) }

// WriteFindings prints findings in the order of Diagnose: what is wrong in full, what is fine as
// one list, and then what could not be read.
func WriteFindings(w io.Writer, findings []Finding, unreadable []string) error {
	p := columns.NewPrinter(w)
	var ok []string
	for _, f := range findings {
		if f.Severity == OK {
			ok = append(ok, f.ID)
			continue
		}
		p.Item(string(f.Severity), f.Title)
		p.Item("", f.Detail)
		p.Item("", f.spoils())
		if f.Fix != "" {
			p.Line("", "$ "+f.Fix)
		}
		p.Blank()
	}
	if len(ok) > 0 {
		p.Item("ok", strings.Join(slices.Compact(ok), ", "))
	}
	if len(unreadable) > 0 {
		p.Item("unread", strings.Join(unreadable, ", "))
	}
	return p.Flush()
}

// spoils returns the sentence about what the finding matters for.
func (f Finding) spoils() string {
	subject := map[string]string{SpoilsMeasurement: "measurements", SpoilsNetwork: "networks", SpoilsBoth: "measurements and networks"}[f.Spoils]
	switch {
	case subject == "":
		return ""
	case f.Severity == Note:
		return "Matters for " + subject + "."
	}
	return "Spoils " + subject + "."
}
