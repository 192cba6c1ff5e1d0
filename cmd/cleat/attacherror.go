package main

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"

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

// isAttachUsage tells whether err is about what was asked for.
func isAttachUsage(err error) bool {
	return errors.As(err, new(*attach.WantError)) || errors.As(err, new(*link.ParamError)) || isFindError(err) ||
		errors.Is(err, attach.ErrNotAttached) || errors.Is(err, attach.ErrDefaultRoute)
}

// isFindError tells whether err is that there is no such container, or none that can
// be told from others or runs.
func isFindError(err error) bool {
	return errors.As(err, new(*find.NotFound)) || errors.As(err, new(*find.Ambiguous)) ||
		errors.As(err, new(*find.NotRunning)) || errors.As(err, new(*find.Unasked))
}

// attachError adds what to type.
func attachError(err error) error {
	var want *attach.WantError
	var param *link.ParamError
	var taken *attach.TakenError
	var none *attach.NoAttachmentError
	var several *attach.SeveralError
	var lack *link.Lack
	switch {
	case err == nil:
		return nil
	case errors.As(err, &want):
		return withHint(usageError{err}, wantHint(want))
	case errors.As(err, &none):
		hint := "`cleat ls` lists what is attached"
		if len(none.Has) > 0 {
			hint = didYouMean(none.Name, none.Has)
		}
		return withHint(usageError{err}, hint)
	case errors.As(err, &several):
		return withHint(usageError{err}, severalHint(several))
	case isFindError(err):
		return err // it has its hint, and is use where it is that
	case errors.As(err, &taken):
		return withHint(err, takenHint(taken))
	case errors.As(err, &param):
		return usageError{err}
	case errors.Is(err, attach.ErrDefaultRoute):
		return withHint(usageError{err}, "the host would cut itself off: give it another way out first, or use macvlan on that device")
	case errors.Is(err, attach.ErrGone):
		return withHint(err, "start it, and attach it again")
	case errors.Is(err, dhcp.ErrNoAnswer):
		return withHint(err, "has that network a DHCP server with addresses left? --ip ADDRESS/LENGTH asks none")
	case errors.Is(err, attach.ErrFull):
		return withHint(err, "use a second bridge, or macvlan, which has no such limit")
	case errors.As(err, &lack):
		return withHint(err, lack.Remedy)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EPERM):
		return withHint(err, "it takes root (CAP_NET_ADMIN and CAP_SYS_ADMIN, and /var/lib/cleat or CLEAT_STATE_DIR to write to)")
	}
	return err
}

// severalHint lists what names one of them.
func severalHint(e *attach.SeveralError) string {
	var words []string
	for _, a := range e.Candidates {
		word := columns.Word(a.Container.Reference())
		if e.OneContainer() {
			word = columns.Word(e.Container) + " " + columns.Word(a.Want.Name)
		}
		if !slices.Contains(words, word) {
			words = append(words, word)
		}
	}
	return "give one of: " + strings.Join(words, ", ")
}

// wantHint is the nearest of what is allowed, or what to type instead.
func wantHint(e *attach.WantError) string {
	switch {
	case e.Instead != "":
		return "attach to that: cleat attach CONTAINER " + e.Instead
	case e.Remedy != "" && strings.Contains(e.Remedy, " "):
		return "as root: " + e.Remedy
	case e.Remedy != "":
		return "use " + e.Remedy
	case len(e.Allowed) > 0:
		return didYouMean(e.Value, e.Allowed)
	}
	return ""
}

// detachText is the command that removes an attachment.
func detachText(a *attach.Attachment) string {
	return fmt.Sprintf("`cleat detach %s %s`", columns.Word(a.Container.Word()), columns.Word(a.Want.Name))
}

func takenHint(e *attach.TakenError) string {
	switch {
	case e.What == "link" && e.Holder != nil:
		return detachText(e.Holder) + " removes that one; --name gives this one another name"
	case e.What == "link":
		return "give it another name with --name, or none for the first free one"
	case e.What == "address" && e.Holder != nil:
		return "`cleat ls` shows who has which address"
	case e.What == "address":
		return "give it another with --ip"
	case e.What == attach.EthernetAddress && e.Holder != nil:
		return "give it another with --mac, or leave that out; " + detachText(e.Holder) + " frees this one"
	case e.What == attach.EthernetAddress:
		return "give it another with --mac, or leave that out"
	case e.What == "network":
		return "choose another network with --ip, or put the container on that link's own network: cleat attach CONTAINER macvlan " + columns.Word(strings.TrimPrefix(e.By, "the host's "))
	case e.What == "route":
		return "leave it out, or remove the one that is there"
	}
	return ""
}
