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

// explain adds a hint to an error, in the script's terms.
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
		hint = "moving it would cut the host off; without --direct-phys the container shares it (macvlan)"
	case errors.Is(err, dhcp.ErrNoAnswer):
		hint = "check that the network of " + o.Host + " has a DHCP server with free addresses; ADDRESS/LENGTH instead of " + o.DHCP.Client + " needs none"
	case errors.Is(err, attach.ErrBridgeFull):
		hint = "use a second bridge, or macvlan, which has no such limit"
	case errors.Is(err, netns.ErrNotFound):
		hint = "give a container, a process id, a name from `ip netns list`, or a path of a network namespace"
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EPERM):
		hint = "run it as root"
	}
	return &Error{err: err, hint: hint}
}

func wantHint(e *attach.SpecError) string {
	switch {
	case e.Param == "mac" && strings.Contains(e.Reason, "kind ipvlan"):
		return "leave out MAC or --ipvlan"
	case e.Param == "host-name":
		return "choose another one with -H, e.g. -H web-1"
	case e.Run != "":
		return "as root: " + e.Run
	case e.Use != "":
		return "use " + e.Use
	case len(e.Allowed) > 0:
		return "known: " + strings.Join(e.Allowed, ", ")
	}
	return ""
}

// takenHint returns a hint for a resource that is in use.
func takenHint(e *attach.TakenError, o Options) string {
	switch {
	case e.Resource == "link" && e.Name == o.HostEnd:
		return "choose another name with -l, or none"
	case e.Resource == "link" && e.Holder != nil:
		return fmt.Sprintf("`cleat detach %s %s` removes that one; -i NAME chooses another name for this one", o.Guest, e.Name)
	case e.Resource == "link":
		return "choose another name with -i"
	case e.Resource == attach.EthernetAddress:
		return "choose another MAC, or none"
	case e.Resource == "address":
		return "`cleat ls` lists all addresses"
	}
	return ""
}
