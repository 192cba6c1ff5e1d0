package pipework

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"cleat/link"
	"cleat/netns"
	"cleat/network/attach"
	"cleat/network/dhcp"
)

// advised is an error with what to type instead.
type advised struct {
	err  error
	hint string
}

func (e advised) Error() string { return e.err.Error() }
func (e advised) Unwrap() error { return e.err }

// Hint is what to type instead.
func (e advised) Hint() string { return e.hint }

// explain adds what to type, in the script's terms.
func explain(err error, o Options) error {
	var own interface{ Hint() string }
	var want *attach.SpecError
	var taken *attach.TakenError
	var lack *link.Lack
	hint := ""
	switch {
	case errors.As(err, &own):
		return err
	case errors.As(err, &want):
		hint = wantHint(want)
	case errors.As(err, &taken):
		hint = takenHint(taken, o)
	case errors.As(err, &lack):
		hint = lack.Remedy
	case errors.Is(err, attach.ErrDefaultRoute):
		hint = "the host would cut itself off: without --direct-phys it shares the device (macvlan)"
	case errors.Is(err, dhcp.ErrNoAnswer):
		hint = "has the network of " + o.Host + " a DHCP server with addresses left? ADDRESS/LENGTH in the place of " + o.DHCP.Client + " asks none"
	case errors.Is(err, attach.ErrBridgeFull):
		hint = "use a second bridge, or macvlan, which has no such limit"
	case errors.Is(err, netns.ErrNotFound):
		hint = "give a container, a process id, a name from `ip netns list`, or a path of a network namespace"
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EPERM):
		hint = "it takes root"
	}
	return advised{err, hint}
}

func wantHint(e *attach.SpecError) string {
	switch {
	case e.Param == "mac" && strings.Contains(e.Reason, "kind ipvlan"):
		return "leave MAC out, or --ipvlan"
	case e.Param == "host-name":
		return "give another one with -H, e.g. -H web-1"
	case e.Run != "":
		return "as root: " + e.Run
	case e.Use != "":
		return "use " + e.Use
	case len(e.Allowed) > 0:
		return "known: " + strings.Join(e.Allowed, ", ")
	}
	return ""
}

// takenHint says how to have what somebody else has.
func takenHint(e *attach.TakenError, o Options) string {
	switch {
	case e.Resource == "link" && e.Name == o.HostEnd:
		return "give it another name with -l, or none"
	case e.Resource == "link" && e.Holder != nil:
		return fmt.Sprintf("`cleat detach %s %s` removes that one; -i NAME gives this one another name", o.Guest, e.Name)
	case e.Resource == "link":
		return "give it another name with -i"
	case e.Resource == attach.EthernetAddress:
		return "give it another as MAC, or none"
	case e.Resource == "address":
		return "`cleat ls` shows who has which address"
	}
	return ""
}
