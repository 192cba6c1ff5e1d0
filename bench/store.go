package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"cleat/internal/atomicfile"
)

// Names of the files in a result directory.
const (
	SamplesFile     = "samples.jsonl"
	EnvironmentFile = "environment.json"
)

// ErrNotEmpty is returned for a result directory that already holds results.
var ErrNotEmpty = errors.New("the directory already holds results")

// store writes a result directory. Each sample is one write of one line, so that
// a kill loses at most the line being written.
type store struct {
	dir     string
	samples *os.File
}

// newStore makes the directory, which must not hold results yet.
func newStore(dir string) (*store, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("make the result directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, SamplesFile), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o666)
	if errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("%w: %s", ErrNotEmpty, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("make the samples file: %w", err)
	}
	return &store{dir: dir, samples: f}, nil
}

// add appends a cell.Sample or a cell.Absent. If the line can't be written in
// full, as on a full disk, it is taken back.
func (s *store) add(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode a sample: %w", err)
	}
	n, err := s.samples.Write(append(line, '\n'))
	if err == nil {
		return nil
	}
	if end, seekErr := s.samples.Seek(0, io.SeekEnd); seekErr == nil {
		s.samples.Truncate(end - int64(n)) // best effort: a reader drops a line that is cut off
	}
	return fmt.Errorf("add a sample: %w", err)
}

// environment replaces what is known about the run.
func (s *store) environment(e Environment) error {
	text, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the environment: %w", err)
	}
	return atomicfile.Write(filepath.Join(s.dir, EnvironmentFile), func(w io.Writer) error {
		_, err := w.Write(append(text, '\n'))
		return err
	})
}

func (s *store) close() error {
	if err := s.samples.Close(); err != nil {
		return fmt.Errorf("close the samples file: %w", err)
	}
	return nil
}
