package tunnel

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"cleat/cli/term"
	"cleat/internal/columns"
	"cleat/tunnel"
	"cleat/tunnel/control"
	"cleat/tunnel/spec"
)

// statusColumns is the width of the smallest terminal that the status fits.
const statusColumns = 80

// statusText returns the output of `cleat tunnel status`: a line for the tunnel, one for
// each path, and counters. With an earlier status, the counters are rates since then.
func statusText(s control.Status, before *control.Status) string {
	var b strings.Builder
	b.WriteString(term.Wrap(tunnelLine(s), ""))
	b.WriteString("\n")
	b.WriteString(pathTable(s, before))
	for _, p := range s.Paths {
		b.WriteString(pathLine(p, s.At))
	}
	b.WriteString(directLine(s))
	if s.FormInUse == spec.Compat {
		b.WriteString("In the form compat the other end reports nothing: paths can't be measured, and\nwithout MPT's keepalives a path counts as live whether the other end is there\nor not.\n")
	}
	b.WriteString("\n")
	b.WriteString(strings.Join(counterLines(s, before), ""))
	return b.String()
}

func tunnelLine(s control.Status) string {
	since := fmt.Sprintf("%s since %s", ageText(s.At.Sub(s.Started)), timeText(s.Started))
	name := fmt.Sprintf("%s on %s", columns.Plain(s.Name), columns.Plain(s.Device))
	switch {
	case s.State == control.TunnelDown && s.NoAnswerSince.IsZero():
		return fmt.Sprintf("%s: down, no answer; started %s, %s, %s", name, timeText(s.Started), s.FormInUse, s.Scheduler)
	case s.State == control.TunnelDown:
		return fmt.Sprintf("%s: down, no answer for %s; started %s, %s, %s", name, sinceText(s.NoAnswerSince, s.At), timeText(s.Started), s.FormInUse, s.Scheduler)
	case !s.Up: // the form in use is not known yet
		return fmt.Sprintf("%s: no answer yet, for %s, form %s, %s", name, since, s.FormInUse, s.Scheduler)
	case s.Cipher == "":
		return fmt.Sprintf("%s: up %s, %s, not encrypted, %s", name, since, s.FormInUse, s.Scheduler)
	}
	return fmt.Sprintf("%s: up %s, %s, %s, %s", name, since, s.FormInUse, s.Cipher, s.Scheduler)
}

// pathLine returns the line below the table that says what address a path has learned,
// since when it is dead and whether it is still used, or "" if there is nothing to say.
func pathLine(p control.Path, at time.Time) string {
	var items []string
	switch {
	case !p.RemoteLearned:
	case p.Remote.IsValid():
		items = append(items, fmt.Sprintf("remote %s for %s", p.Remote, sinceText(p.RemoteSince, at)))
	case p.State == control.Waiting:
		items = append(items, "waits for the other end, which needs an address of this host as remote")
	}
	if !p.NoAnswerSince.IsZero() {
		items = append(items, "no answer for "+sinceText(p.NoAnswerSince, at))
	}
	if p.State == control.Dead && p.InUse {
		items = append(items, "still in use")
	}
	if p.Contended {
		items = append(items, "others fill it too")
	}
	if p.Tripped {
		items = append(items, "loses too much: nothing is sent again, and little is sent")
	}
	if len(items) == 0 {
		return ""
	}
	return term.Wrap(columns.Plain(p.Name)+": "+strings.Join(items, "; "), "")
}

// directLine returns what the kernel moves, or why it does not, or "" if there is nothing to say.
func directLine(s control.Status) string {
	switch d := s.Direct; {
	case d.On:
		return term.Wrap(fmt.Sprintf("direct for %s: packets pass no program", sinceText(d.Since, s.At)), "")
	case d.Why != "":
		return term.Wrap("not direct: "+columns.Plain(d.Why), "")
	}
	return ""
}

func timeText(t time.Time) string { return t.Local().Format("2006-01-02 15:04") }

// sinceText returns how long ago a time was, and the time.
func sinceText(t, now time.Time) string {
	return fmt.Sprintf("%s since %s", ageText(now.Sub(t)), term.Time(t))
}

// ageText formats a duration in its two largest units.
func ageText(d time.Duration) string {
	days, d := int(d/(24*time.Hour)), d%(24*time.Hour)
	hours, minutes, seconds := int(d.Hours()), int(d.Minutes())%60, int(d.Seconds())%60
	switch {
	case days > 0:
		return fmt.Sprintf("%dd%dh", days, hours)
	case hours > 0:
		return fmt.Sprintf("%dh%dm", hours, minutes)
	case minutes > 0:
		return fmt.Sprintf("%dm%ds", minutes, seconds)
	}
	return fmt.Sprintf("%ds", seconds)
}

// The header of the table of paths; the second line has the units.
var (
	pathHeads = []string{"PATH", "STATE", "RATE", "SHARE", "UP TO", "TOTAL", "LOSS", "RTT", "DELAY", "QUEUE"}
	pathUnits = []string{"", "", "bit/s", "", "bit/s", "bytes", "", "", "", ""}
)

// numberColumns are the columns that are aligned to the right.
var numberColumns = []int{2, 3, 4, 5, 6, 7, 8, 9}

// pathTable returns a table with a line of at most statusColumns for each path.
func pathTable(s control.Status, before *control.Status) string {
	rows := [][]string{pathHeads, pathUnits}
	for _, p := range s.Paths {
		rows = append(rows, pathRow(p, pathRate(p, s, before), s.FormInUse))
	}
	widths := columns.Widths(rows)
	rest := 0
	for _, w := range widths[1:] {
		rest += columns.Gap + w
	}
	widths[0] = max(min(widths[0], statusColumns-rest), len("PATH"))
	var b strings.Builder
	for _, r := range rows {
		r[0] = cutMiddle(r[0], widths[0])
		b.WriteString(columns.Row(r, widths, numberColumns...))
	}
	return b.String()
}

// pathRow returns the cells of a path in the columns of pathHeads. A dash marks a value
// that is not measured at present.
func pathRow(p control.Path, bitsPerSec float64, form spec.Form) []string {
	row := []string{columns.Plain(p.Name), string(p.State), "-", "-", "-", numberText(float64(p.DeliveredBytes)), "-", "-", "-", "-"}
	if form == spec.Compat {
		row[5] = "-"
		return row
	}
	if p.State != control.Live {
		return row
	}
	copy(row[2:], []string{numberText(bitsPerSec), percentText(p.ShareRatio), numberText(p.MaySendBitsPerSec)})
	copy(row[6:], []string{percentText(p.LossRatio), term.Seconds(p.RTTSeconds), term.Seconds(p.DelaySeconds), term.Seconds(p.QueueSeconds)})
	return row
}

// pathRate returns the rate at which a path has delivered since before, or recently.
func pathRate(p control.Path, now control.Status, before *control.Status) float64 {
	if before == nil {
		return p.BitsPerSec
	}
	for _, was := range before.Paths {
		if was.Name == p.Name && was.DeliveredBytes <= p.DeliveredBytes {
			return float64(p.DeliveredBytes-was.DeliveredBytes) * 8 / now.At.Sub(before.At).Seconds()
		}
	}
	return p.BitsPerSec // the path is new
}

// counterLines returns the counters that users want to see: totals since the start or,
// with an earlier status, rates per second.
func counterLines(s control.Status, before *control.Status) []string {
	var was tunnel.Stats
	seconds, per := 1.0, ""
	if before != nil {
		was, seconds, per = before.Counters, s.At.Sub(before.At).Seconds(), "/s"
	}
	c := s.Counters
	rate := func(now, then uint64) float64 { return float64(now-min(then, now)) / seconds }
	all := func(now, then uint64, what string) string { return numberText(rate(now, then)) + " " + what }
	things := func(now, then uint64, thing string) string {
		return term.Plural(numberText(rate(now, then)), thing) + per
	}
	// some omits a counter that is 0.
	some := func(now, then uint64, what string) string {
		if now == 0 {
			return ""
		}
		return all(now, then, what)
	}
	const labels = 10 // columns
	indent := strings.Repeat(" ", labels)
	line := func(label string, items ...string) string {
		text := strings.Join(slices.DeleteFunc(items, func(i string) bool { return i == "" }), ", ")
		return fmt.Sprintf("%-*s", labels, label) + strings.TrimPrefix(term.Wrap(text, indent), indent)
	}
	lines := []string{
		line("read", things(c.Read, was.Read, "packet"), things(c.ReadBytes, was.ReadBytes, "byte"),
			some(c.QueueDrops, was.QueueDrops, "dropped (paths full)"), some(c.QueueMarks, was.QueueMarks, "marked (paths full)"), some(c.TooBig, was.TooBig, "too big")),
		line("sent", things(c.Sent, was.Sent, "packet"), all(c.Resent, was.Resent, "again"), some(c.LateResends, was.LateResends, "too late to send again"), some(c.SendErrors, was.SendErrors, "refused by the kernel")),
		line("received", things(c.Received, was.Received, "packet"), things(c.ReceivedBytes, was.ReceivedBytes, "byte"),
			some(c.Missing, was.Missing, "missing"), some(c.Invalid, was.Invalid, "strange"), some(c.WrongSource, was.WrongSource, "from elsewhere"), some(c.WriteErrors, was.WriteErrors, "refused by the device")),
	}
	o, w := c.Order, was.Order
	lines = append(lines,
		line("in order", things(o.Delivered, w.Delivered, "packet"), all(o.Held, w.Held, "waited"), all(o.Lost, w.Lost, "given up"),
			some(o.Late, w.Late, "late"), some(o.Duplicates, w.Duplicates, "twice"), some(o.TooOld, w.TooOld, "too old"), some(o.Forced, w.Forced, "for lack of space")),
		line("measured", measuredItems(s, before)...),
		line("now", term.Plural(numberText(float64(c.QueueBytes)), "byte")+" queued", term.Plural(numberText(float64(c.KeptBytes)), "byte")+" kept", term.Plural(numberText(float64(o.Waiting)), "packet")+" waiting"))
	return lines
}

// measuredItems returns what the paths have sent to be measured, and which are metered.
func measuredItems(s control.Status, before *control.Status) []string {
	now, then, seconds, per := measuringBytes(s), uint64(0), 1.0, ""
	if before != nil {
		then, seconds, per = measuringBytes(*before), s.At.Sub(before.At).Seconds(), "/s"
	}
	items := []string{numberText(float64(now-min(then, now))/seconds) + " bytes" + per + " of padding and probes"}
	var metered []string
	for _, p := range s.Paths {
		if p.Metered {
			metered = append(metered, columns.Plain(p.Name))
		}
	}
	if len(metered) > 0 {
		items = append(items, "metered: "+strings.Join(metered, " "))
	}
	return items
}

func measuringBytes(s control.Status) (sum uint64) {
	for _, p := range s.Paths {
		sum += p.MeasuringBytes
	}
	return sum
}

// numberText formats a number in at most five columns, with a decimal unit from 1000 on:
// "0", "7.5", "999", "1.23K", "94.1M".
func numberText(v float64) string {
	if v < 10 && v != math.Trunc(v) {
		return fmt.Sprintf("%.1f", v)
	}
	if v < 999.5 {
		return fmt.Sprintf("%.0f", v)
	}
	unit := ""
	for _, unit = range []string{"K", "M", "G", "T", "P", "E"} {
		if v /= 1000; v < 999.5 {
			break
		}
	}
	return term.ThreeDigits(v) + unit
}

// percentText formats a ratio in at most five columns.
func percentText(ratio float64) string {
	switch {
	case ratio == 0:
		return "0%"
	case ratio < 0.0001:
		return "<.01%"
	}
	return term.ThreeDigits(ratio*100) + "%"
}

// cutMiddle shortens text to a width. It keeps the beginning and the end,
// because names differ there.
func cutMiddle(text string, width int) string {
	r := []rune(text)
	if len(r) <= width {
		return text
	}
	front := (width - 1) / 2
	return string(r[:front]) + "…" + string(r[len(r)-(width-1-front):])
}
