package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"cleat/bench/cell"
)

// Names of the files in a result directory.
const (
	SamplesFile     = "samples.jsonl"
	EnvironmentFile = "environment.json"
	ReportFile      = "report.html"
)

// ErrNotEmpty says that a result directory already holds results.
var ErrNotEmpty = errors.New("the directory already holds results")

// store writes a result directory. Each sample is one write of one line, so
// that a kill loses at most the line being written.
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

func (s *store) sample(v cell.Sample) error { return s.line(v) }
func (s *store) absent(v cell.Absent) error { return s.line(v) }

func (s *store) line(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode a sample: %w", err)
	}
	if _, err := s.samples.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("write a sample: %w", err)
	}
	return nil
}

// environment writes what is known about the run so far, replacing what was
// there whole or not at all.
func (s *store) environment(e Environment) error {
	b, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the environment: %w", err)
	}
	f, err := os.CreateTemp(s.dir, "."+EnvironmentFile+"-*") // a name that leads nowhere else
	if err != nil {
		return fmt.Errorf("write the environment: %w", err)
	}
	_, err = f.Write(append(b, '\n'))
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(s.dir, EnvironmentFile))
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("write the environment: %w", err)
	}
	return nil
}

func (s *store) close() error {
	if err := s.samples.Close(); err != nil {
		return fmt.Errorf("close the samples file: %w", err)
	}
	return nil
}
