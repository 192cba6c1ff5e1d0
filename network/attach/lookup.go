package attach

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"cleat/netns"
)

// Lookup finds an attachment by what a person types: a container as cfg.Find finds it or, if
// that is gone, as it was called before, and the name of the link, which may be empty if the
// container has only one. The notes say which files can't be read and which engines did not
// answer. The error is a *NoAttachmentError, which wraps ErrNotAttached, or an
// *AmbiguousError.
func Lookup(ctx context.Context, cfg Config, ref, name string) (a *Attachment, notes []string, err error) {
	c, ns, findErr := cfg.Find(ctx, ref)
	if findErr == nil {
		defer ns.Close()
		if c.SilentEngines != "" {
			notes = append(notes, c.silenceNote())
		}
		if name != "" {
			if a, err := cfg.Store.Attachment(idOf(c, name)); err == nil {
				return a, notes, nil
			}
		}
	}
	all, readErr := cfg.Store.Attachments()
	if readErr != nil {
		notes = append(notes, strings.Split(readErr.Error(), "\n")...)
	}
	candidates := slices.DeleteFunc(slices.Clone(all), func(a *Attachment) bool { return findErr != nil || idOf(c, a.Spec.Name) != a.ID })
	if len(candidates) == 0 {
		candidates = slices.DeleteFunc(all, func(a *Attachment) bool {
			// A process id may have belonged to another process.
			return !a.Container.Matches(ref) || findErr == nil && c.Engine == "pid" && !cfg.Store.isIn(a, ns)
		})
	}
	if err = findErr; len(candidates) > 0 || findErr == nil {
		a, err = pick(candidates, ref, name)
	}
	if err != nil && readErr != nil { // it may be in a file that can't be read
		err = fmt.Errorf("%w; %w", err, readErr)
	}
	return a, notes, err
}

// isIn reports whether an attachment's link was put into ns.
func (s *Store) isIn(a *Attachment, ns *netns.NS) bool {
	all, _ := readJournal(s.liveJournal(a.ID)) // the header is enough
	return all.Container.matches(ns)
}

// pick returns the attachment whose link has this name or, if the name is empty, the only one.
func pick(candidates []*Attachment, ref, name string) (*Attachment, error) {
	found := slices.DeleteFunc(slices.Clone(candidates), func(a *Attachment) bool { return name != "" && a.Spec.Name != name })
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		e := &NoAttachmentError{Container: ref, Name: name}
		for _, a := range candidates {
			e.Links = append(e.Links, a.Spec.Name)
		}
		return nil, e
	}
	return nil, &AmbiguousError{Container: ref, Candidates: found}
}

// NoAttachmentError means that there is no such attachment. It wraps ErrNotAttached.
type NoAttachmentError struct {
	Container string   // what was typed
	Name      string   // "": any
	Links     []string // names of the container's attached links
}

func (e *NoAttachmentError) Error() string {
	if e.Name == "" {
		return e.Container + " has no attached link"
	}
	return fmt.Sprintf("%s has no attached link %q", e.Container, e.Name)
}

// Unwrap returns ErrNotAttached.
func (e *NoAttachmentError) Unwrap() error { return ErrNotAttached }

// AmbiguousError means that what was typed matches several attachments.
type AmbiguousError struct {
	Container  string        // what was typed
	Candidates []*Attachment // at least two
}

func (e *AmbiguousError) Error() string {
	if e.SameContainer() {
		return fmt.Sprintf("%s has %d attached links", e.Container, len(e.Candidates))
	}
	return fmt.Sprintf("%q matches several containers", e.Container)
}

// SameContainer reports whether the candidates are links of one container.
func (e *AmbiguousError) SameContainer() bool {
	first := e.Candidates[0].Container.QualifiedName()
	return !slices.ContainsFunc(e.Candidates, func(a *Attachment) bool { return a.Container.QualifiedName() != first })
}
