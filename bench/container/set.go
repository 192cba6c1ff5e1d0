package container

import (
	"context"
	"errors"
)

// Set opens runtimes at first use. It is used from one goroutine.
type Set struct {
	cfg   Config
	taken map[string]opening
}

type opening struct {
	runtime *Runtime
	err     error
}

// NewSet returns a set without any open runtime.
func NewSet(cfg Config) *Set { return &Set{cfg: cfg, taken: map[string]opening{}} }

// Take opens the named runtime once. An error is returned again by later calls.
func (s *Set) Take(ctx context.Context, name string) (*Runtime, error) {
	o, ok := s.taken[name]
	if !ok {
		o.runtime, o.err = Open(ctx, name, s.cfg)
		if o.err == nil || ctx.Err() == nil {
			s.taken[name] = o
		}
	}
	return o.runtime, o.err
}

// Close closes the open runtimes.
func (s *Set) Close() error {
	var errs []error
	for _, o := range s.taken {
		errs = append(errs, o.runtime.Close())
	}
	s.taken = nil
	return errors.Join(errs...)
}
