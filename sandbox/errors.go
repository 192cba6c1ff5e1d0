package sandbox

import (
	"errors"
	"fmt"

	"cleat/usernet"
)

// ErrNotAttached says that the process was not started by a command that Attach
// prepared.
var ErrNotAttached = errors.New("this process was not started with a network: see Attach")

// ErrNotForwarded says that there is no such forward.
var ErrNotForwarded = usernet.ErrNoForward

// ConfigError is a field of Config that can't be.
type ConfigError struct {
	Field string // as in Config, e.g. "MTU" or "DNS.Listen"
	Value string
	Want  string // what would do
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("configure network: %s %q: want %s", e.Field, e.Value, e.Want)
}

// SetupError is a step inside the namespace that failed: which, why, and where
// known what to do about it.
type SetupError struct {
	Step   string // e.g. "open /dev/net/tun"
	Err    error
	Remedy string // what to type; "" where unknown
}

func (e *SetupError) Error() string { return fmt.Sprintf("%s: %v", e.Step, e.Err) }

// Unwrap is the cause.
func (e *SetupError) Unwrap() error { return e.Err }

// Hint is the remedy, for the door.
func (e *SetupError) Hint() string { return e.Remedy }
