package networks

import (
	"errors"
	"fmt"
	"syscall"

	"cleat/cli/attach"
	"cleat/cli/hint"
	"cleat/internal/columns"
	networkattach "cleat/network/attach"
	"cleat/network/ipam"
	"cleat/network/named"
	"cleat/overlay/control"
)

// stateDir returns the state directory for messages.
func stateDir() string {
	store, err := networkattach.OpenStore("")
	if err != nil {
		return "/var/lib/cleat"
	}
	return columns.Word(store.Path())
}

// WithHint adds to an error of package network/named what to type next.
func WithHint(err error) error {
	var none *named.NoNetworkError
	var notConnected *named.NotConnectedError
	var inUse *named.InUseError
	var connected *named.ConnectedError
	var unpublished *named.NotPublishedError
	var noRule *named.NoRuleError
	var taken *networkattach.TakenError
	var address *named.AddressTakenError
	var reserved *named.AddressReservedError
	var port *named.PortTakenError
	var full *ipam.FullError
	var later *named.LaterVersionError
	var byNode *control.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, control.ErrNotRunning):
		return hint.With(err, "networks that span hosts need it: `cleat-node up` on the first host, `cleat-node token` for the others")
	case errors.As(err, &byNode) && byNode.Hint != "":
		return hint.With(err, byNode.Hint)
	case errors.Is(err, syscall.ENOSPC):
		return hint.With(err, "nothing was changed; make room on that file system: `df -h "+stateDir()+"`")
	case errors.Is(err, syscall.EROFS):
		return hint.With(err, "nothing was changed; `findmnt -T "+stateDir()+"` shows that file system; CLEAT_STATE_DIR sets another directory")
	case errors.As(err, &later):
		return hint.With(err, "install that cleat again; `cleat --version` shows which one this is")
	case errors.As(err, &none):
		advice := "`cleat net create " + columns.Word(none.Name) + "` creates it"
		if len(none.Names) > 0 {
			advice = hint.DidYouMean(none.Name, none.Names)
		}
		return hint.With(hint.Usage(err), advice)
	case errors.As(err, &notConnected):
		if len(notConnected.Containers) == 0 {
			return hint.With(hint.Usage(err), "no container is on it")
		}
		return hint.With(hint.Usage(err), hint.DidYouMean(notConnected.Container, notConnected.Containers))
	case errors.As(err, &inUse):
		return hint.With(err, fmt.Sprintf("`cleat net rm --force %s` disconnects them first", inUse.Network))
	case errors.As(err, &connected):
		return hint.With(err, fmt.Sprintf("`cleat net publish` publishes more ports; `cleat net disconnect %s %s` first for other values", connected.Network, columns.Word(connected.Container)))
	case errors.As(err, &unpublished) && len(unpublished.Ports) > 0:
		return hint.With(hint.Usage(err), "it publishes "+join(unpublished.Ports))
	case errors.As(err, &noRule):
		return hint.With(hint.Usage(err), "`cleat net policy NETWORK` lists rules")
	case errors.As(err, &address):
		return hint.With(err, "leave --ip out for a free one, or `cleat net disconnect "+columns.Word(address.Network)+" "+columns.Word(address.Container)+"`")
	case errors.As(err, &reserved):
		return hint.With(err, "leave --ip out for a free one")
	case errors.As(err, &port):
		return hint.With(err, "choose another port of the host; -p "+fmt.Sprint(port.Port.Port)+" chooses a free one")
	case errors.As(err, &full):
		return hint.With(err, "disconnect containers that are not needed: `cleat net ls` lists them; `cleat net prune` removes those whose containers are gone")
	case errors.As(err, &taken) && taken.Resource == "network":
		return hint.With(err, "choose another --subnet, or leave it out for a free one")
	case errors.As(err, &taken) && (taken.Resource == "name" || taken.Resource == "link"):
		return hint.With(err, "choose another name")
	}
	return attach.WithHint(err)
}
