package container

import (
	"context"
	"errors"

	"cleat/bench/cell"
)

// Set opens runtimes at first use. It is used from one goroutine.
type Set struct {
	cfg    Config
	opened map[string]*Runtime
	failed map[string]error
}

// NewSet returns a set without any open runtime.
func NewSet(cfg Config) *Set {
	return &Set{cfg: cfg, opened: map[string]*Runtime{cell.Native: nil}, failed: map[string]error{}}
}

// Take opens the named runtime once. An error is returned again by later calls.
func (s *Set) Take(ctx context.Context, name string) (*Runtime, error) {
	if r, ok := s.opened[name]; ok {
		return r, nil
	}
	if err := s.failed[name]; err != nil {
		return nil, err
	}
	r, err := Open(ctx, name, s.cfg)
	if err == nil {
		s.opened[name] = r
	} else if ctx.Err() == nil {
		s.failed[name] = err
	}
	return r, err
}

// Close closes the open runtimes.
func (s *Set) Close() error {
	var errs []error
	for _, r := range s.opened {
		errs = append(errs, r.Close())
	}
	s.opened = nil
	return errors.Join(errs...)
}
