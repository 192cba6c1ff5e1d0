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

// nothingChanged is an error after which everything is as it was.
type nothingChanged struct{ err error }

func (e nothingChanged) Error() string { return "nothing was changed: " + e.err.Error() }

func (e nothingChanged) Unwrap() error { return e.err }

// isUsage tells whether err is about what was asked for.
func isUsage(err error) bool {
	return errors.As(err, new(*attach.SpecError)) || errors.As(err, new(*link.ParamError)) || isFindError(err) ||
		errors.Is(err, attach.ErrNotAttached) || errors.Is(err, attach.ErrDefaultRoute)
}

// isFindError tells whether err is that there is no such container, or none that can
// be told from others or runs.
func isFindError(err error) bool {
	return errors.As(err, new(*find.NotFound)) || errors.As(err, new(*find.Ambiguous)) ||
		errors.As(err, new(*find.NotRunning)) || errors.As(err, new(*find.Unasked))
}

// WithHint adds what to type.
func WithHint(err error) error {
	var want *attach.SpecError
	var param *link.ParamError
	var taken *attach.TakenError
	var none *attach.NoAttachmentError
	var several *attach.AmbiguousError
	var lack *link.Lack
	switch {
	case err == nil:
		return nil
	case errors.As(err, &want):
		return hint.With(hint.Usage(err), specHint(want))
	case errors.As(err, &none):
		advice := "`cleat ls` lists what is attached"
		if len(none.Links) > 0 {
			advice = hint.DidYouMean(none.Name, none.Links)
		}
		return hint.With(hint.Usage(err), advice)
	case errors.As(err, &several):
		return hint.With(hint.Usage(err), ambiguousHint(several))
	case isFindError(err):
		return err // it has its hint, and is use where it is that
	case errors.As(err, &taken):
		return hint.With(err, takenHint(taken))
	case errors.As(err, &param):
		return hint.Usage(err)
	case errors.Is(err, attach.ErrDefaultRoute):
		return hint.With(hint.Usage(err), "the host would cut itself off: give it another way out first, or use macvlan on that device")
	case errors.Is(err, attach.ErrContainerGone):
		return hint.With(err, "start it, and attach it again")
	case errors.Is(err, dhcp.ErrNoAnswer):
		return hint.With(err, "has that network a DHCP server with addresses left? --ip ADDRESS/LENGTH asks none")
	case errors.Is(err, attach.ErrBridgeFull):
		return hint.With(err, "use a second bridge, or macvlan, which has no such limit")
	case errors.As(err, &lack):
		return hint.With(err, lack.Remedy)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EPERM):
		return hint.With(err, "it takes root (CAP_NET_ADMIN and CAP_SYS_ADMIN, and /var/lib/cleat or CLEAT_STATE_DIR to write to)")
	}
	return err
}

// ambiguousHint lists what names one of them.
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

// specHint is the nearest of what is allowed, or what to type instead.
func specHint(e *attach.SpecError) string {
	switch {
	case e.AttachTo != "":
		return "attach to that: cleat attach CONTAINER " + e.AttachTo
	case e.Run != "":
		return "as root: " + e.Run
	case e.Use != "":
		return "use " + e.Use
	case len(e.Allowed) > 0:
		return hint.DidYouMean(e.Value, e.Allowed)
	}
	return ""
}

// detachCommand is the command that removes an attachment.
func detachCommand(a *attach.Attachment) string {
	return fmt.Sprintf("`cleat detach %s %s`", columns.Word(a.Container.ShortName()), columns.Word(a.Spec.Name))
}

func takenHint(e *attach.TakenError) string {
	switch {
	case e.Resource == "link" && e.Holder != nil:
		return detachCommand(e.Holder) + " removes that one; --name gives this one another name"
	case e.Resource == "link":
		return "give it another name with --name, or none for the first free one"
	case e.Resource == "address" && e.Holder != nil:
		return "`cleat ls` shows who has which address"
	case e.Resource == "address":
		return "give it another with --ip"
	case e.Resource == attach.EthernetAddress && e.Holder != nil:
		return "give it another with --mac, or leave that out; " + detachCommand(e.Holder) + " frees this one"
	case e.Resource == attach.EthernetAddress:
		return "give it another with --mac, or leave that out"
	case e.Resource == "network":
		return "choose another network with --ip, or put the container on that link's own network: cleat attach CONTAINER macvlan " + columns.Word(strings.TrimPrefix(e.Owner, "the host's "))
	case e.Resource == "route":
		return "leave it out, or remove the one that is there"
	}
	return ""
}
