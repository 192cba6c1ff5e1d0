package run

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"cleat/cli/hint"
)

// captureFile is the file of --pcap.
type captureFile struct {
	*os.File
	started bool // the header has been written
}

// openCapture creates the file of --pcap. The file must not exist: an existing
// file, least of all a device, is never overwritten. It returns nil without
// --pcap.
func (f *flags) openCapture() (*captureFile, error) {
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
	return &captureFile{File: file}, nil
}

// Write is first called with the header, before any other goroutine has the file.
func (c *captureFile) Write(b []byte) (int, error) {
	n, err := c.File.Write(b)
	if !c.started {
		c.started = err == nil
	}
	return n, err
}

// Close closes the file. It removes a file without a header, whether the disk is
// full or the network did not start: the file holds nothing, and would make
// openCapture refuse the next attempt.
func (c *captureFile) Close() error {
	if !c.started {
		return errors.Join(os.Remove(c.Name()), c.File.Close())
	}
	return c.File.Close()
}
