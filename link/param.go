package link

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ParamError names a parameter that can't be, and what would be allowed.
type ParamError struct {
	Kind, Param, Value, Allowed string
}

func (e *ParamError) Error() string {
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

func (m MAC) hardware() net.HardwareAddr {
	if m == (MAC{}) {
		return nil
	}
	return net.HardwareAddr(m[:])
}

// checkName holds the kernel's rule for device names (dev_valid_name,
// net/core/dev.c).
func checkName(kind, param, name string) error {
	if name == "" || len(name) >= unix.IFNAMSIZ || name == "." || name == ".." || strings.ContainsAny(name, "/: \t\n") {
		return &ParamError{Kind: kind, Param: param, Value: name, Allowed: "1…15 bytes without '/', ':' or white space"}
	}
	return nil
}

// nlAttrs are the shared attributes in the netlink library's form.
func (a Attrs) nlAttrs(to Target) netlink.LinkAttrs {
	la := netlink.NewLinkAttrs()
	la.Name = a.Name
	la.MTU = a.MTU
	la.HardwareAddr = a.MAC.hardware()
	if a.TxQueueLen > 0 {
		la.TxQLen = a.TxQueueLen
	}
	if to.NS != nil {
		la.Namespace = netlink.NsFd(to.NS.Fd())
	}
	return la
}

// readAttrs is the other direction of nlAttrs.
func readAttrs(l netlink.Link) Attrs {
	la := l.Attrs()
	a := Attrs{Name: la.Name, MTU: la.MTU, TxQueueLen: la.TxQLen}
	if len(la.HardwareAddr) == len(a.MAC) {
		a.MAC = MAC(la.HardwareAddr)
	}
	return a
}

// parentIndex finds a parent device by name.
func parentIndex(h *netlink.Handle, kind, name string) (int, error) {
	p, err := h.LinkByName(name)
	if err != nil {
		return 0, &ParamError{Kind: kind, Param: "parent", Value: name, Allowed: "a link that exists in the namespace: " + err.Error()}
	}
	return p.Attrs().Index, nil
}

// kernelError turns the kernel's refusal to create into the error a caller can
// decide on.
func kernelError(spec Spec, err error) error {
	name := spec.attrs().Name
	switch {
	case errors.Is(err, unix.EEXIST):
		return fmt.Errorf("create %s %q: %w", spec.Kind(), name, ErrExists)
	case errors.Is(err, unix.EOPNOTSUPP):
		return lackOf(spec.Kind(), err)
	}
	return fmt.Errorf("create %s %q: %w", spec.Kind(), name, err)
}

// lackOf explains why a kind can't be made.
func lackOf(kind string, err error) *Lack {
	return &Lack{What: fmt.Sprintf("links of kind %q", kind), Reason: err.Error()}
}
