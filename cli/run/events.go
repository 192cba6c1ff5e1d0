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

// eventLog prints the messages of `cleat run` in a goroutine of its own, since the threads that
// carry traffic can't wait for a terminal. Messages that arrive faster than they are read are
// dropped and counted. It is safe for concurrent use.
type eventLog struct {
	asJSON  bool
	lines   chan []byte
	dropped atomic.Int64
	ended   chan struct{}
}

// eventQueue is the number of lines that may wait, each of about 200 bytes.
const eventQueue = 256

// newEventLog starts to print to w, until close is called.
func newEventLog(w io.Writer, asJSON bool) *eventLog {
	s := &eventLog{asJSON: asJSON, lines: make(chan []byte, eventQueue), ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		for line := range s.lines {
			w.Write(line) // without a reader, the network goes on
			if n := s.dropped.Swap(0); n > 0 {
				w.Write(s.format(event{Event: "dropped", Count: n}, fmt.Sprintf("%d more messages were dropped: too fast to print", n)))
			}
		}
	}()
	return s
}

// close prints the waiting lines. The log can't be used afterwards.
func (s *eventLog) close() {
	close(s.lines)
	<-s.ended
}

// event is a message, as --json prints it.
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

// refusedFlow is a flow that the policy refused.
type refusedFlow struct {
	Protocol    string         `json:"protocol"`
	Source      netip.AddrPort `json:"source,omitzero"`
	Destination netip.AddrPort `json:"destination"`
	Names       []string       `json:"names,omitempty"`
	Rule        string         `json:"rule,omitempty"`
}

// put queues a message. It never blocks.
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
			panic(err) // events can always be marshalled
		}
		return append(line, '\n')
	}
	var b bytes.Buffer
	for line := range strings.Lines(text) {
		b.WriteString("cleat: " + strings.TrimRight(line, "\n") + "\n")
	}
	return b.Bytes()
}

// ready reports that the network is up, and the forwarded ports. Without --json and --verbose
// it omits what the command line states.
func (s *eventLog) ready(info control.Info, forwards []control.Forward, f *flags) {
	if s.asJSON || f.verbose || f.netns != "" {
		text := fmt.Sprintf("the network of %s is up; control it with `cleat ctl %s`", info.Namespace, info.Name)
		switch {
		case f.netns != "":
			server := "" // for the container's resolv.conf, which is not written
			if len(info.Resolvers) > 0 {
				server = fmt.Sprintf(", with the name server %s", info.Resolvers[0])
			}
			text = fmt.Sprintf("the network of %s is up%s; stop it with Ctrl-C", info.Namespace, server)
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

// refused reports a flow that the policy refused.
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

// warn reports a warning.
func (s *eventLog) warn(message string) {
	s.put(event{Event: "warning", Message: message}, "warning: "+message)
}

// logHandler is a slog.Handler that makes messages of warnings and errors.
type logHandler struct {
	events *eventLog
	attrs  string
}

func (h *logHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

func (h *logHandler) Handle(_ context.Context, r slog.Record) error {
	text := r.Message + h.attrs
	r.Attrs(func(a slog.Attr) bool { text += attrText(a); return true })
	h.events.warn(text)
	return nil
}

func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	for _, a := range attrs {
		with.attrs += attrText(a)
	}
	return &with
}

func (h *logHandler) WithGroup(string) slog.Handler { return h }

func attrText(a slog.Attr) string { return fmt.Sprintf(" %s=%v", a.Key, a.Value) }
