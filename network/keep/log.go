package keep

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"cleat/internal/columns"
	"cleat/network/attach"
)

// logMax is how many bytes a log has before it is put aside, in the place of the one
// before: some thousand lines.
const logMax = 256 << 10

const logTime = "2006-01-02T15:04:05.000Z"

// LogFile is where a keeper that nobody listens to says what it does. What was said
// before is beside it, with ".1" at the end.
func LogFile(store *attach.Store) string { return store.Path("keeper.log") }

// Log writes lines to LogFile, with the time in front. It is for one goroutine.
type Log struct {
	path string
	file *os.File
	size int64
}

// OpenLog goes on with the file that is there.
func OpenLog(store *attach.Store) (*Log, error) {
	l := &Log{path: LogFile(store)}
	return l, l.open()
}

func (l *Log) open() error {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return fmt.Errorf("open log: %w", err)
	}
	l.file, l.size = f, info.Size()
	return nil
}

// Printf writes a line. What can't be written is lost: a full disk must not keep
// anybody from keeping.
func (l *Log) Printf(format string, args ...any) {
	if l.size >= logMax && l.turn() != nil {
		return
	}
	n, _ := fmt.Fprintf(l.file, "%s %s\n", time.Now().UTC().Format(logTime), columns.Plain(fmt.Sprintf(format, args...)))
	l.size += int64(n)
}

// turn puts the file aside and begins another.
func (l *Log) turn() error {
	if err := os.Rename(l.path, l.path+".1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	old := l.file
	if err := l.open(); err != nil {
		return err
	}
	return old.Close()
}

// Close closes the file.
func (l *Log) Close() error { return l.file.Close() }
