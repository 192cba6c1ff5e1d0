package link

import (
	"errors"
	"fmt"
	"strings"
)

// ErrExists is the error for a name that is in use.
var ErrExists = errors.New("link exists")

// ErrConflict is the error for a link whose identity in the kernel another link
// has under another name: the same VNI and port, the same VLAN of one parent, or
// the same tunnel endpoints.
var ErrConflict = errors.New("another link has the same parameters")

// ParamError is an invalid parameter.
type ParamError struct {
	Kind, Param, Value string
	Allowed            string   // describes the valid values
	ValidParams        []string // set if there is no parameter Param: the ones that exist, the most similar first
}

func (e *ParamError) Error() string {
	if e.ValidParams != nil {
		return fmt.Sprintf("%s: no parameter %q; there are %s", e.Kind, e.Param, strings.Join(e.ValidParams, ", "))
	}
	return fmt.Sprintf("%s: %s %q: allowed: %s", e.Kind, e.Param, e.Value, e.Allowed)
}

// Lack is a feature that the running kernel, the machine or the caller's
// privileges do not provide, and how to get it.
type Lack struct {
	What   string // e.g. `links of kind "ipvlan"`
	Reason string // e.g. "the kernel was built without CONFIG_IPVLAN"
	Remedy string // what to type, install or load; "" if unknown
}

func (e *Lack) Error() string {
	if e.Remedy == "" {
		return fmt.Sprintf("%s: %s", e.What, e.Reason)
	}
	return fmt.Sprintf("%s: %s (%s)", e.What, e.Reason, e.Remedy)
}

// KernelError is an error number with the kernel's explanation (an extended
// acknowledgement). It wraps the error number.
type KernelError struct {
	Message string // in the kernel's words
	Errno   error
}

func (e *KernelError) Error() string { return e.Message + ": " + e.Errno.Error() }

// Unwrap returns the error number.
func (e *KernelError) Unwrap() error { return e.Errno }
