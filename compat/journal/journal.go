// Package journal takes the lines that a helper program has to say: to standard
// error while somebody may be reading there, to a file of bounded size or to the
// system's log afterwards.
//
// # Theory of operation
//
// A Journal has one destination at a time and drops what is below its level. A
// file that would grow beyond its limit loses its older half first: the newer
// half, from the beginning of a line, is moved to the front in place, so the
// descriptor is all that is needed, and a sealed process can do it.
//
// # Limits
//
// Nothing here fails: a line that can't be written is lost, for there is nobody
// left to tell.
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

// Journal takes lines. It is safe for concurrent use.
type Journal struct {
	name  string
	level slog.Level

	mu  sync.Mutex
	put func(level slog.Level, line string)
}

// New writes lines from the level upward to w, each after the program's name.
func New(w io.Writer, name string, level slog.Level) *Journal {
	return &Journal{name: name, level: level, put: func(_ slog.Level, line string) {
		fmt.Fprintf(w, "%s: %s\n", name, line)
	}}
}

// Describe is an error as it is printed: Explain's lines, each after the
// program's name.
func Describe(name string, err error) string {
	var b strings.Builder
	for line := range strings.SplitSeq(Explain(err), "\n") {
		b.WriteString(name + ": " + columns.Plain(line) + "\n")
	}
	return b.String()
}

// Explain is an error and, where it has a hint, on lines of their own what to do
// about it, which is not said twice.
func Explain(err error) string {
	var advice interface{ Hint() string }
	if errors.As(err, &advice) && advice.Hint() != "" {
		hint := advice.Hint()
		return columns.PlainLines(strings.TrimSuffix(err.Error(), " ("+hint+")")) + "\nhint: " + strings.ReplaceAll(hint, "\n", "\nhint: ")
	}
	return columns.PlainLines(err.Error())
}

// ToFile turns to a file from its end on, which will hold at most limit bytes,
// each line after the time. The file stays the caller's.
func (j *Journal) ToFile(f *os.File, limit int64) {
	b := &bounded{f: f, limit: limit}
	if info, err := f.Stat(); err == nil {
		b.size = info.Size()
	}
	j.turn(func(_ slog.Level, line string) {
		b.append(time.Now().UTC().Format("2006-01-02T15:04:05.000Z ") + line + "\n")
	})
}

// ToSyslog turns to the system's log. Where there is none it says so and lines
// are lost from then on.
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

// Infof says something that is good to know.
func (j *Journal) Infof(format string, args ...any) { j.say(slog.LevelInfo, format, args...) }

// Warnf says that something is not as it was asked for.
func (j *Journal) Warnf(format string, args ...any) { j.say(slog.LevelWarn, format, args...) }

// Errorf says what ends the program.
func (j *Journal) Errorf(format string, args ...any) { j.say(slog.LevelError, format, args...) }

func (j *Journal) say(level slog.Level, format string, args ...any) {
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

// Logger makes records of a slog.Logger lines of the journal.
func (j *Journal) Logger() *slog.Logger { return slog.New(handler{journal: j}) }

// handler is a slog.Handler: the message, then "key=value".
type handler struct {
	journal *Journal
	prefix  string // of keys
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
	h.journal.say(r.Level, "%s", b.String())
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

// bounded is a file that forgets its beginning.
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

// forget moves the newer half of the limit to the front.
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
	b.f.Truncate(b.size) // what is left behind is overwritten
}
