package run

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"cleat/policy"
	"cleat/sandbox"
	"cleat/sandbox/control"
)

// eventLog prints what `cleat run` has to say, in a goroutine of its own: who
// carries bytes can't wait for a terminal. What comes faster than it is read is
// counted instead. It is safe for concurrent use.
type eventLog struct {
	asJSON  bool
	lines   chan []byte
	dropped atomic.Int64
	ended   chan struct{}
}

// eventQueue is how many lines may wait, each about 200 bytes.
const eventQueue = 256

// newEventLog begins to print to w; close ends it.
func newEventLog(w io.Writer, asJSON bool) *eventLog {
	s := &eventLog{asJSON: asJSON, lines: make(chan []byte, eventQueue), ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		for line := range s.lines {
			w.Write(line) // a reader that has gone away is no reason to end
			if n := s.dropped.Swap(0); n > 0 {
				w.Write(s.format(event{Event: "dropped", Count: n}, fmt.Sprintf("%d more that came too fast to print", n)))
			}
		}
	}()
	return s
}

// close prints what waits. Nothing can be said afterwards.
func (s *eventLog) close() {
	close(s.lines)
	<-s.ended
}

// event is a line of --json.
type event struct {
	Event   string           `json:"event"` // "ready", "published", "refused", "warning", "stats", "dropped"
	Time    *time.Time       `json:"time,omitempty"`
	Info    *control.Info    `json:"info,omitempty"`
	Forward *control.Forward `json:"forward,omitempty"`
	Refused *refusedFlow     `json:"flow,omitempty"`
	Stats   *control.Stats   `json:"stats,omitempty"`
	Message string           `json:"message,omitempty"`
	Count   int64            `json:"count,omitempty"`
}

// refusedFlow is a flow that did not come about.
type refusedFlow struct {
	Protocol    string         `json:"protocol"`
	Source      netip.AddrPort `json:"source,omitzero"`
	Destination netip.AddrPort `json:"destination"`
	Names       []string       `json:"names,omitempty"`
	Rule        string         `json:"rule,omitempty"`
}

// put queues a line; it never blocks.
func (s *eventLog) put(e event, text string) {
	select {
	case s.lines <- s.format(e, text):
	default:
		s.dropped.Add(1)
	}
}

func (s *eventLog) format(e event, text string) []byte {
	if s.asJSON {
		line, err := json.Marshal(e)
		if err != nil {
			panic(err) // events hold nothing that can't be written
		}
		return append(line, '\n')
	}
	var b bytes.Buffer
	for line := range strings.Lines(text) {
		b.WriteString("cleat: " + strings.TrimRight(line, "\n") + "\n")
	}
	return b.Bytes()
}

// ready says that the network is there: with --json always, otherwise what
// somebody must know who could not foresee it.
func (s *eventLog) ready(info control.Info, forwards []control.Forward, f *flags) {
	if s.asJSON || f.verbose || f.netns != "" {
		text := fmt.Sprintf("the network of %s is up: cleat ctl %s", info.Namespace, info.Name)
		switch {
		case f.netns != "":
			// Whose resolv.conf it is, is not ours to write.
			text = fmt.Sprintf("the network of %s is up%s; Ctrl-C ends it", info.Namespace, resolverText(info.Resolvers))
		case f.control == "off":
			text = fmt.Sprintf("the network of %s is up", info.Namespace)
		}
		s.put(event{Event: "ready", Info: &info}, text)
	}
	for _, w := range forwards {
		if s.asJSON || f.verbose || !f.published.names(w) {
			s.put(event{Event: "published", Forward: &w}, fmt.Sprintf("published: %s leads to port %d inside (%s)", w.Listen, w.To.Port, w.Protocol))
		}
	}
}

// resolverText says what resolv.conf should name.
func resolverText(resolvers []netip.Addr) string {
	if len(resolvers) == 0 {
		return ""
	}
	return fmt.Sprintf(", its resolver %s", resolvers[0])
}

// refused tells of a flow that a rule, or the lack of one, has refused.
func (s *eventLog) refused(f sandbox.Flow, d policy.Decision) {
	e := event{Event: "refused", Message: d.Reason, Refused: &refusedFlow{
		Protocol: f.Protocol.String(), Source: f.Source, Destination: f.Destination, Names: d.Names}}
	if d.Rule != nil && d.Builtin == "" {
		e.Refused.Rule = d.Rule.String()
	}
	to := f.Destination.String()
	if len(d.Names) > 0 {
		to += " (" + strings.Join(d.Names, ", ") + ")"
	}
	s.put(e, fmt.Sprintf("refused: %s to %s: %s", f.Protocol, to, d.Reason))
}

func (s *eventLog) warn(message string) {
	s.put(event{Event: "warning", Message: message}, "warning: "+message)
}

// stats prints the counters at the end.
func (s *eventLog) stats(c control.Stats) {
	s.put(event{Event: "stats", Stats: &c}, StatsText(c))
}

// logger makes of the library's warnings lines of ours.
func (s *eventLog) logger() *slog.Logger { return slog.New(&sayHandler{say: s}) }

// sayHandler is a slog.Handler that keeps to warnings and errors.
type sayHandler struct {
	say   *eventLog
	attrs string
}

func (h *sayHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

func (h *sayHandler) Handle(_ context.Context, r slog.Record) error {
	text := r.Message + h.attrs
	r.Attrs(func(a slog.Attr) bool { text += attrText(a); return true })
	h.say.warn(text)
	return nil
}

func (h *sayHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	for _, a := range attrs {
		with.attrs += attrText(a)
	}
	return &with
}

func (h *sayHandler) WithGroup(string) slog.Handler { return h }

func attrText(a slog.Attr) string { return fmt.Sprintf(" %s=%v", a.Key, a.Value) }
