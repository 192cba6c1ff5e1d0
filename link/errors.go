package link

import (
	"fmt"
	"net"
	"strings"

	"golang.org/x/sys/unix"
)

// ParamError names a parameter that can't be, and what would be allowed.
type ParamError struct {
	Kind, Param, Value, Allowed string
	ValidParams                 []string // the parameters that there are, if this is none of them; the nearest first
}

func (e *ParamError) Error() string {
	if e.ValidParams != nil {
		return fmt.Sprintf("%s: no parameter %q; there are %s", e.Kind, e.Param, strings.Join(e.ValidParams, ", "))
	}
	return fmt.Sprintf("%s: %s %q: allowed: %s", e.Kind, e.Param, e.Value, e.Allowed)
}

// Lack is something the running kernel, the machine or our privilege does not
// give, and what would supply it.
type Lack struct {
	What   string // e.g. `links of kind "ipvlan"`
	Reason string // e.g. "the kernel was built without CONFIG_IPVLAN"
	Remedy string // what to type, install or load
}

func (e *Lack) Error() string {
	if e.Remedy == "" {
		return fmt.Sprintf("%s: %s", e.What, e.Reason)
	}
	return fmt.Sprintf("%s: %s (%s)", e.What, e.Reason, e.Remedy)
}

// KernelError is a refusal that the kernel gave a reason for (an extended
// acknowledgement). It wraps the error number.
type KernelError struct {
	Message string // the kernel's words
	Errno   error
}

func (e *KernelError) Error() string { return e.Message + ": " + e.Errno.Error() }

// Unwrap is the error number.
func (e *KernelError) Unwrap() error { return e.Errno }

// MAC is a 48-bit Ethernet address; the zero MAC means "none given".
type MAC [6]byte

// ParseMAC reads 02:00:5e:10:00:01.
func ParseMAC(s string) (MAC, error) {
	hw, err := net.ParseMAC(s)
	if err != nil || len(hw) != 6 {
		return MAC{}, &ParamError{Kind: "link", Param: "mac", Value: s, Allowed: "six hexadecimal bytes, e.g. 02:00:5e:10:00:01"}
	}
	return MAC(hw), nil
}

func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// MarshalText is String, and nothing for the zero MAC.
func (m MAC) MarshalText() ([]byte, error) {
	if m == (MAC{}) {
		return nil, nil
	}
	return []byte(m.String()), nil
}

// UnmarshalText reads what MarshalText writes.
func (m *MAC) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*m = MAC{}
		return nil
	}
	got, err := ParseMAC(string(b))
	*m = got
	return err
}

// nameRule is the kernel's rule for device names, for people.
const nameRule = "1…15 bytes without '/', ':' or white space"

// validName holds the kernel's rule for device names (dev_valid_name,
// net/core/dev.c).
func validName(name string) bool {
	return name != "" && len(name) < unix.IFNAMSIZ && name != "." && name != ".." && !strings.ContainsAny(name, "/: \t\n\v\f\r")
}
