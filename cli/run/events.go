package run

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/netip"
	"strings"

	"cleat/cli/term"
	"cleat/policy"
	"cleat/sandbox"
	"cleat/sandbox/control"
)

// eventLog prints the messages of `cleat run`. The threads that carry traffic can't wait for a
// terminal. It is safe for concurrent use.
type eventLog struct {
	asJSON bool
	lines  *term.LineQueue
}

// eventQueue is the number of lines that may wait, each of about 200 bytes.
const eventQueue = 256

// newEventLog starts to print to w, until close is called.
func newEventLog(w io.Writer, asJSON bool) *eventLog {
	s := &eventLog{asJSON: asJSON}
	s.lines = term.NewLineQueue(w, eventQueue, func(dropped int) []byte {
		return s.format(event{Event: "dropped", Count: dropped}, fmt.Sprintf("%d more messages were dropped: too fast to print", dropped))
	})
	return s
}

// close prints the waiting lines, however long that takes.
func (s *eventLog) close() { s.lines.Close(math.MaxInt64) }

// event is a message, as --json prints it.
type event struct {
	Event   string           `json:"event"` // "ready", "published", "refused", "warning", "stats", "dropped"
	Info    *control.Info    `json:"info,omitempty"`
	Forward *control.Forward `json:"forward,omitempty"`
	Refused *refusedFlow     `json:"flow,omitempty"`
	Stats   *control.Stats   `json:"stats,omitempty"`
	Message string           `json:"message,omitempty"`
	Count   int              `json:"count,omitempty"`
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
func (s *eventLog) put(e event, text string) { s.lines.Put(s.format(e, text)) }

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
