package run

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"

	"cleat/cli/hint"
)

// captureFile is the file of --pcap.
type captureFile struct {
	*os.File
	log  *slog.Logger
	size int64 // of what was written whole; 0: not even the header
}

// openCapture creates the file of --pcap. The file must not exist: an existing
// file, least of all a device, is never overwritten. It returns nil without
// --pcap.
func (f *flags) openCapture(log *slog.Logger) (*captureFile, error) {
	if f.pcap == "" {
		return nil, nil
	}
	file, err := os.OpenFile(f.pcap, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil, hint.With(hint.Usagef("--pcap %s: it exists, and is not overwritten", f.pcap), "name another file, or remove it first")
	}
	if err != nil {
		return nil, fmt.Errorf("--pcap: %w", err)
	}
	return &captureFile{File: file, log: log}, nil
}

// Write is first called with the header, then with whole records, and not again after an
// error. If the disk is full it removes the part of a record that was written, so that
// the file can be read, and warns: the network goes on without the capture.
func (c *captureFile) Write(b []byte) (int, error) {
	n, err := c.File.Write(b)
	switch {
	case err == nil:
		c.size += int64(n)
	case c.size > 0:
		c.log.Warn("the capture ends here", "error", errors.Join(err, c.Truncate(c.size)))
	}
	return n, err
}

// Close closes the file. It removes a file without a header, whether the disk is
// full or the network did not start: the file holds nothing, and would make
// openCapture refuse the next attempt.
func (c *captureFile) Close() error {
	if c.size == 0 {
		return errors.Join(os.Remove(c.Name()), c.File.Close())
	}
	return c.File.Close()
}
