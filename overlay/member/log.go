package member

import (
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// newLogger returns a logger for etcd which passes errors on to a log. broken is called for those after which etcd
// ends the process.
func newLogger(log func(format string, args ...any), broken func(why string)) *zap.Logger {
	c := &core{LevelEnabler: zapcore.ErrorLevel, log: log, recent: &recent{}}
	if broken == nil {
		return zap.New(c)
	}
	return zap.New(c, zap.WithFatalHook(hook(broken)), zap.WithPanicHook(hook(broken)))
}

type hook func(why string)

// OnWrite implements zapcore.CheckWriteHook.
func (h hook) OnWrite(e *zapcore.CheckedEntry, fields []zapcore.Field) { h(textOf(e.Entry, fields)) }

// sameAfter is how long an error that repeats is not logged again.
const sameAfter = time.Minute

// recent remembers which errors were logged.
type recent struct {
	mu  sync.Mutex
	all map[string]time.Time
}

// due reports whether a text was not logged recently.
func (r *recent) due(text string, now time.Time) bool {
	const most = 100
	r.mu.Lock()
	defer r.mu.Unlock()
	if at, ok := r.all[text]; ok && now.Sub(at) < sameAfter {
		return false
	}
	if r.all == nil || len(r.all) >= most {
		r.all = map[string]time.Time{}
	}
	r.all[text] = now
	return true
}

type core struct {
	zapcore.LevelEnabler
	fields []zapcore.Field
	log    func(format string, args ...any)
	recent *recent
}

func (c *core) With(fields []zapcore.Field) zapcore.Core {
	return &core{c.LevelEnabler, append(c.fields[:len(c.fields):len(c.fields)], fields...), c.log, c.recent}
}

func (c *core) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return to.AddCore(e, c)
	}
	return to
}

func (c *core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	if text := textOf(e, append(c.fields[:len(c.fields):len(c.fields)], fields...)); c.recent.due(text, e.Time) {
		c.log("etcd: %s", text)
	}
	return nil
}

func (c *core) Sync() error { return nil }

// textOf returns an entry with its errors.
func textOf(e zapcore.Entry, fields []zapcore.Field) string {
	text := e.Message
	for _, f := range fields {
		if err, ok := f.Interface.(error); ok && f.Type == zapcore.ErrorType {
			text += ": " + err.Error()
		}
	}
	return text
}
