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

// maxLogBytes is the size at which a log is rotated, some thousand lines.
const maxLogBytes = 256 << 10

const logTime = "2006-01-02T15:04:05.000Z"

// LogFile returns the path of the log of keepers that were started on demand. The log before it is
// beside it, with the suffix ".1".
func LogFile(store *attach.Store) string { return store.Path("keeper.log") }

// Log writes lines to LogFile, each after the time. It is not safe for concurrent use.
type Log struct {
	path string
	file *os.File
	size int64
}

// OpenLog opens the log, or creates it.
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

// Printf writes a line. A line that can't be written is lost: a full disk must not stop the keeper.
func (l *Log) Printf(format string, args ...any) {
	if l.size >= maxLogBytes && l.rotate() != nil {
		return
	}
	n, _ := fmt.Fprintf(l.file, "%s %s\n", time.Now().UTC().Format(logTime), columns.Plain(fmt.Sprintf(format, args...)))
	l.size += int64(n)
}

func (l *Log) rotate() error {
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
