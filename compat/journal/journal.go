// Package journal writes the messages of a helper program: to standard error while
// somebody may read them there, later to a file of bounded size or to the system log.
//
// # Theory of operation
//
// A Journal has one destination at a time and drops messages below its level. When a file
// would exceed its limit, its newer half, from the start of a line, is moved to the front
// in place. This needs only the descriptor, so a sealed process can do it.
//
// # Limits
//
// Write errors are ignored, because there is nobody left to report them to.
package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"log/syslog"
	"os"
	"strings"
	"sync"
	"time"

	"cleat/internal/columns"
)

// Journal writes messages. It is safe for concurrent use.
type Journal struct {
	name  string
	level slog.Level

	mu  sync.Mutex
	put func(level slog.Level, line string)
}

// New returns a Journal that writes messages from level upward to w, each after the
// program's name.
func New(w io.Writer, name string, level slog.Level) *Journal {
	return &Journal{name: name, level: level, put: func(_ slog.Level, line string) {
		fmt.Fprintf(w, "%s: %s\n", name, line)
	}}
}

// Describe returns an error as text to print: Explain's lines, each after the program's
// name.
func Describe(name string, err error) string {
	var b strings.Builder
	for line := range strings.SplitSeq(Explain(err), "\n") {
		b.WriteString(name + ": " + columns.Plain(line) + "\n")
	}
	return b.String()
}

// Explain returns an error with its hint, if any, on lines of its own. If the error's
// text ends in the hint, that is removed.
func Explain(err error) string {
	var advice interface{ Hint() string }
	if errors.As(err, &advice) && advice.Hint() != "" {
		hint := advice.Hint()
		return columns.PlainLines(strings.TrimSuffix(err.Error(), " ("+hint+")")) + "\nhint: " + strings.ReplaceAll(hint, "\n", "\nhint: ")
	}
	return columns.PlainLines(err.Error())
}

// ToFile switches to a file, starting at its end, which will hold at most limit bytes.
// Each line begins with the time. The caller keeps ownership of the file.
func (j *Journal) ToFile(f *os.File, limit int64) {
	b := &bounded{f: f, limit: limit}
	if info, err := f.Stat(); err == nil {
		b.size = info.Size()
	}
	j.turn(func(_ slog.Level, line string) {
		b.append(time.Now().UTC().Format("2006-01-02T15:04:05.000Z ") + line + "\n")
	})
}

// ToSyslog switches to the system log. If there is none, it returns an error and messages
// are dropped from then on.
func (j *Journal) ToSyslog() error {
	w, err := syslog.New(syslog.LOG_DAEMON, j.name)
	if err != nil {
		j.turn(func(slog.Level, string) {})
		return err
	}
	j.turn(func(level slog.Level, line string) {
		switch {
		case level >= slog.LevelError:
			w.Err(line)
		case level >= slog.LevelWarn:
			w.Warning(line)
		case level >= slog.LevelInfo:
			w.Info(line)
		default:
			w.Debug(line)
		}
	})
	return nil
}

func (j *Journal) turn(put func(slog.Level, string)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.put = put
}

// Infof logs information.
func (j *Journal) Infof(format string, args ...any) { j.printf(slog.LevelInfo, format, args...) }

// Warnf logs that something differs from the request.
func (j *Journal) Warnf(format string, args ...any) { j.printf(slog.LevelWarn, format, args...) }

// Errorf logs the error that ends the program.
func (j *Journal) Errorf(format string, args ...any) { j.printf(slog.LevelError, format, args...) }

func (j *Journal) printf(level slog.Level, format string, args ...any) {
	if level < j.level {
		return
	}
	text := strings.TrimRight(fmt.Sprintf(format, args...), "\n")
	j.mu.Lock()
	defer j.mu.Unlock()
	for line := range strings.SplitSeq(text, "\n") {
		j.put(level, columns.Plain(line))
	}
}

// Logger returns a slog.Logger that writes to the journal.
func (j *Journal) Logger() *slog.Logger { return slog.New(handler{journal: j}) }

// handler is a slog.Handler that writes the message followed by "key=value".
type handler struct {
	journal *Journal
	prefix  string // prefix of keys
	attrs   string
}

func (h handler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.journal.level }

func (h handler) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	b.WriteString(r.Message)
	b.WriteString(h.attrs)
	r.Attrs(func(a slog.Attr) bool {
		b.WriteString(h.one(a))
		return true
	})
	h.journal.printf(r.Level, "%s", b.String())
	return nil
}

func (h handler) one(a slog.Attr) string {
	value := a.Value.Resolve().String()
	if strings.ContainsAny(value, " \n\"") {
		value = fmt.Sprintf("%q", value)
	}
	return " " + h.prefix + a.Key + "=" + value
}

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		h.attrs += h.one(a)
	}
	return h
}

func (h handler) WithGroup(name string) slog.Handler {
	h.prefix += name + "."
	return h
}

// bounded is a file that drops its oldest lines.
type bounded struct {
	f           *os.File
	limit, size int64
}

func (b *bounded) append(line string) {
	if int64(len(line)) > b.limit {
		return
	}
	if b.size+int64(len(line)) > b.limit {
		b.forget()
	}
	n, _ := b.f.WriteAt([]byte(line), b.size)
	b.size += int64(n)
}

// forget moves the newest lines, at most half the limit, to the front.
func (b *bounded) forget() {
	kept := make([]byte, min(b.limit/2, b.size))
	n, err := b.f.ReadAt(kept, b.size-int64(len(kept)))
	if err != nil {
		n = 0
	}
	kept = kept[:n]
	if i := bytes.IndexByte(kept, '\n'); i >= 0 {
		kept = kept[i+1:]
	}
	if _, err := b.f.WriteAt(kept, 0); err != nil {
		kept = nil
	}
	b.size = int64(len(kept))
	b.f.Truncate(b.size) // on error, the rest is overwritten later
}
