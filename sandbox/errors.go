package sandbox

import (
	"errors"
	"fmt"

	"cleat/usernet"
)

// ErrNotAttached is returned by Open in a process that was not started by a command prepared
// with Attach.
var ErrNotAttached = errors.New("this process was not started with a network: see Attach")

// ErrNotForwarded is returned by Unforward if there is no such forward.
var ErrNotForwarded = usernet.ErrNoForward

// ConfigError is an invalid field of Config.
type ConfigError struct {
	Field string // e.g. "MTU" or "DNS.Listen"
	Value string
	Want  string // what is valid
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("configure network: %s %q: want %s", e.Field, e.Value, e.Want)
}

// SetupError is a failed step of setting up a namespace.
type SetupError struct {
	Step   string // e.g. "open /dev/net/tun"
	Err    error
	Remedy string // a command to run or a change to make; "" if none is known
}

func (e *SetupError) Error() string { return fmt.Sprintf("%s: %v", e.Step, e.Err) }

// Unwrap returns Err.
func (e *SetupError) Unwrap() error { return e.Err }

// Hint returns Remedy.
func (e *SetupError) Hint() string { return e.Remedy }
