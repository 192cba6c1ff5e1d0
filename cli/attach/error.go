package attach

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"

	"cleat/cli/hint"
	"cleat/internal/columns"
	"cleat/link"
	"cleat/netns/find"
	"cleat/network/attach"
	"cleat/network/dhcp"
)

// isUsage reports whether err is about the command line, so that nothing was changed.
func isUsage(err error) bool {
	return errors.As(err, new(*attach.SpecError)) || errors.As(err, new(*link.ParamError)) || isFindError(err) ||
		errors.Is(err, attach.ErrNotAttached) || errors.Is(err, attach.ErrDefaultRoute)
}

// isFindError reports whether err is about a CONTAINER argument: there is no such container,
// several have the name, it does not run, or its engine could not be asked.
func isFindError(err error) bool {
	return errors.As(err, new(*find.NotFound)) || errors.As(err, new(*find.Ambiguous)) ||
		errors.As(err, new(*find.NotRunning)) || errors.As(err, new(*find.Unasked))
}

// flagError names a flag as the user types it, where err names a field of the Spec.
type flagError struct {
	err  error
	text string
}

func (e flagError) Error() string { return e.text }
func (e flagError) Unwrap() error { return e.err }

// withDashes returns err with dashes before the flag that spec names.
func withDashes(err error, spec *attach.SpecError) error {
	if spec.Param == "kind" || strings.ToLower(spec.Param) != spec.Param { // arguments: KIND, PARENT, CONTAINER
		return err
	}
	return flagError{err, strings.Replace(err.Error(), spec.Error(), "--"+spec.Error(), 1)}
}

// WithHint adds a hint to an error of package network/attach.
func WithHint(err error) error {
	var spec *attach.SpecError
	var param *link.ParamError
	var taken *attach.TakenError
	var none *attach.NoAttachmentError
	var ambiguous *attach.AmbiguousError
	var lack *link.Lack
	var ofNetwork *attach.NetworkError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &spec):
		return hint.With(hint.Usage(withDashes(err, spec)), specHint(spec))
	case errors.As(err, &none):
		advice := "`cleat ls` lists what is attached"
		if len(none.Links) > 0 {
			advice = hint.DidYouMean(none.Name, none.Links)
		}
		return hint.With(hint.Usage(err), advice)
	case errors.As(err, &ofNetwork):
		a := ofNetwork.Attachment
		return hint.With(hint.Usage(err), fmt.Sprintf("`cleat net disconnect %s %s` removes it", a.Spec.Network, columns.Word(a.Container.ShortName())))
	case errors.As(err, &ambiguous):
		return hint.With(hint.Usage(err), ambiguousHint(ambiguous))
	case isFindError(err):
		return err // it has a hint, and package exit knows whether it is about usage
	case errors.As(err, &taken):
		return hint.With(err, takenHint(taken))
	case errors.As(err, &param):
		return hint.Usage(err)
	case errors.Is(err, attach.ErrDefaultRoute):
		return hint.With(hint.Usage(err), "the host would lose its connection: give it another default route first, or use macvlan on that device")
	case errors.Is(err, attach.ErrContainerGone):
		return hint.With(err, "start it and attach it again")
	case errors.Is(err, dhcp.ErrNoAnswer):
		return hint.With(err, "does that network have a DHCP server with free addresses? --ip ADDRESS/LENGTH needs none")
	case errors.Is(err, attach.ErrBridgeFull):
		return hint.With(err, "use a second bridge, or macvlan, which has no such limit")
	case errors.As(err, &lack):
		return hint.With(err, lack.Remedy)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EPERM):
		return hint.With(err, "this needs root: CAP_NET_ADMIN, CAP_SYS_ADMIN, and write access to /var/lib/cleat (or CLEAT_STATE_DIR)")
	}
	return err
}

func ambiguousHint(e *attach.AmbiguousError) string {
	var words []string
	for _, a := range e.Candidates {
		word := columns.Word(a.Container.QualifiedName())
		if e.SameContainer() {
			word = columns.Word(e.Container) + " " + columns.Word(a.Spec.Name)
		}
		if !slices.Contains(words, word) {
			words = append(words, word)
		}
	}
	return "give one of: " + strings.Join(words, ", ")
}

// specHint returns what to type instead of the value that is wrong.
func specHint(e *attach.SpecError) string {
	switch {
	case e.AttachTo != "":
		return "use that: cleat attach CONTAINER " + e.AttachTo
	case e.Run != "":
		return "as root: " + e.Run
	case e.Use != "":
		return "use " + e.Use
	case len(e.Allowed) > 0:
		return hint.DidYouMean(e.Value, e.Allowed)
	case e.Param == "PARENT" && e.Value == "":
		return "give it after KIND, as in `cleat attach web macvlan eth0`"
	}
	return ""
}

func detachCommand(a *attach.Attachment) string {
	return fmt.Sprintf("`cleat detach %s %s`", columns.Word(a.Container.ShortName()), columns.Word(a.Spec.Name))
}

func takenHint(e *attach.TakenError) string {
	switch {
	case e.Resource == "link" && e.Holder != nil:
		return detachCommand(e.Holder) + " removes it; --name chooses another name"
	case e.Resource == "link":
		return "choose another name with --name, or leave it out for the first free one"
	case e.Resource == "address" && e.Holder != nil:
		return "`cleat ls` lists all addresses"
	case e.Resource == "address":
		return "choose another address with --ip"
	case e.Resource == attach.EthernetAddress && e.Holder != nil:
		return "choose another address with --mac, or leave --mac out; " + detachCommand(e.Holder) + " frees this one"
	case e.Resource == attach.EthernetAddress:
		return "choose another address with --mac, or leave --mac out"
	case e.Resource == "network":
		return "choose another network with --ip, or attach to the network of that link: cleat attach CONTAINER macvlan " + columns.Word(strings.TrimPrefix(e.Owner, "the host's "))
	case e.Resource == "route":
		return "leave the route out, or remove the existing one"
	}
	return ""
}
