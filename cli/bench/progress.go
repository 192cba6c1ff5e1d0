package bench

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"cleat/bench/cell"
	"cleat/bench/experiment"
	"cleat/cli/term"
	"cleat/internal/columns"
)

// progress shows how an experiment proceeds: on a terminal one line that changes,
// elsewhere a line every few seconds.
type progress struct {
	w        io.Writer
	quiet    bool
	terminal bool
	total    int
	done     int
	line     string // text on the terminal
	last     time.Time
	repeat   int
	block    int
	now      string // the job being measured
	said     map[string]bool

	toDo time.Duration // estimated time of the current job and all that follow

	// Where the blocks that count begin. Warm-up builds the networks, so its speed says
	// nothing about theirs.
	countedFrom time.Time
	countedPlan time.Duration // estimated time of the jobs measured since then
	current     time.Duration // estimated time of the current job

	disturbed int    // samples that do not count
	why       string // the reason for the last one
}

// progressEvery is the interval between lines if the output is not a terminal.
const progressEvery = 5 * time.Second

func newProgress(f *os.File, e experiment.Experiment, dir string, quiet bool, possible func(experiment.Job) bool) *progress {
	p := &progress{w: f, quiet: quiet, terminal: term.IsTerminal(f), repeat: e.Repeat, said: map[string]bool{}}
	estimate := e.Estimate(possible)
	announce(f, estimate)
	if !quiet {
		fmt.Fprintf(f, "%s: %s\n%s, %s and %d to warm up, about %s; results in %s\n",
			e.Name, e.Title, term.Count(len(e.Networks()), "network"), term.Count(e.Repeat, "block"), e.Warmup, about(estimate), dir)
		for _, pair := range e.Between {
			fmt.Fprintf(f, "between the machines %s\n", pair)
		}
		if len(e.Only) > 0 {
			fmt.Fprintf(f, "only %s: %s a block\n", e.Only, term.Count(len(e.Jobs()), "measurement"))
		}
	}
	return p
}

// longRun is the time above which even a quiet run announces how long it takes.
const longRun = 10 * time.Minute

func announce(w io.Writer, estimate time.Duration) {
	if estimate > longRun {
		fmt.Fprintf(w, "this run takes about %s; --repeat, --duration, --networks and --only make it shorter\n", about(estimate))
	}
}

// about rounds an estimate: to the second below a minute, to the minute above ten.
func about(d time.Duration) string {
	if d < longRun {
		return d.Round(time.Second).String()
	}
	text := d.Round(time.Minute).String()
	return strings.TrimSuffix(text, "0s")
}

// Start implements bench.Progress.
func (p *progress) Start(measurements int) { p.total = measurements }

// Next implements bench.Progress.
func (p *progress) Next(i, block int, job experiment.Job, toDo time.Duration) {
	switch {
	case block >= 1 && p.countedFrom.IsZero():
		p.countedFrom = time.Now()
	case block >= 1:
		p.countedPlan += p.current
	}
	p.done, p.block, p.toDo, p.current = i, block, toDo, job.Estimate()
	p.now = describe(job)
	p.show("")
}

// Again implements bench.Progress.
func (p *progress) Again(job experiment.Job) {
	p.now = describe(job) + ", again"
	p.show("")
}

// Sample implements bench.Progress.
func (p *progress) Sample(s cell.Sample) {
	switch {
	case s.Error != "":
		p.printLine(fmt.Sprintf("%s %s: %s", inRuntime(s.Cell), s.Work, s.Error))
	case s.Bad.Text != "":
		p.disturbed++
		p.why = s.Bad.Text
		p.show("disturbed: " + s.Bad.Text)
	default:
		p.show(headline(s))
	}
}

// Absent implements bench.Progress.
func (p *progress) Absent(a cell.Absent) {
	what := inRuntime(a.Cell)
	if a.NotApplicable {
		p.printOnce(fmt.Sprintf("%s: not applicable: %s", what, a.Reason))
		return
	}
	if reason, ok := a.MissingRuntime(); ok {
		p.printOnce(fmt.Sprintf("everything in %s: unavailable: %s", a.Runtime, reason))
		return
	}
	p.printOnce(fmt.Sprintf("%s: unavailable: %s", what, a.Reason))
}

// printOnce prints a line that may apply to many cells once.
func (p *progress) printOnce(text string) {
	if !p.said[text] {
		p.said[text] = true
		p.printLine(text)
	}
}

// inRuntime returns the network and, for containers, the runtime.
func inRuntime(c cell.Cell) string {
	if c.Runtime == "" || c.Runtime == cell.Native {
		return c.Network
	}
	return c.Network + " in " + c.Runtime
}

func describe(job experiment.Job) string {
	text := inRuntime(job.Cell) + " " + job.Work.Kind
	if job.Cell.Pairs > 1 {
		text += fmt.Sprintf(" ×%d", job.Cell.Pairs)
	}
	return text
}

// headline returns the most important number of a sample.
func headline(s cell.Sample) string {
	m := cell.MetricsOf(s.Work, s.Loop())[0]
	if v, ok := s.Values[m]; ok {
		return m.Format(v)
	}
	return ""
}

// show updates the line; result is that of the last measurement.
func (p *progress) show(result string) {
	if p.quiet || !p.terminal && (time.Since(p.last) < progressEvery || result != "") {
		return
	}
	p.last = time.Now()
	block := fmt.Sprintf("block %d/%d", p.block, p.repeat)
	if p.block < 1 {
		block = "warm-up"
	}
	line := fmt.Sprintf("%3d/%d  %-10s  %s  %s", p.done, p.total, block, p.remaining(), p.now)
	if result != "" {
		line += "  " + result
	}
	if !p.terminal {
		fmt.Fprintln(p.w, line)
		return
	}
	if r := []rune(line); len(r) > 79 {
		line = string(r[:79])
	}
	fmt.Fprintf(p.w, "\r\x1b[K%s", line)
	p.line = line
}

// remaining estimates the remaining time: by the schedule until a block that counts is done,
// then in proportion to the time that these blocks took.
func (p *progress) remaining() string {
	d := p.toDo
	if p.block > 1 && p.countedPlan > 0 {
		d = time.Duration(float64(d) * float64(time.Since(p.countedFrom)) / float64(p.countedPlan))
	}
	return fmt.Sprintf("%5s left", d.Round(time.Second))
}

// printLine prints a line that stays.
func (p *progress) printLine(text string) {
	if p.quiet {
		return
	}
	if p.terminal {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
	fmt.Fprintln(p.w, columns.PlainLines(text))
}

// end clears the changing line and reports how many samples were disturbed.
func (p *progress) end() {
	if p.quiet {
		return
	}
	if p.terminal {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
	if p.disturbed > 0 {
		fmt.Fprintf(p.w, "disturbed samples: %d (the last: %s); a result uses them only if it has no others\n", p.disturbed, p.why)
	}
}
