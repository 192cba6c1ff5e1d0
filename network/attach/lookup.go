package attach

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"cleat/netns"
	"cleat/network/journal"
)

// Lookup finds an attachment by what a person types: as the container is found
// now, or, when it is gone, by what it was called. An empty name is that of the
// container's only link. The notes say which files can't be read, and which engines did
// not answer. ErrNotAttached: there is none. *AmbiguousError: more than one may be meant.
func Lookup(ctx context.Context, cfg Config, ref, name string) (a *Attachment, notes []string, err error) {
	c, ns, findErr := cfg.Find(ctx, ref)
	if findErr == nil {
		defer ns.Close()
	}
	if findErr == nil && c.SilentEngines != "" {
		notes = append(notes, c.silenceNote())
	}
	if findErr == nil && name != "" {
		if a, err := cfg.Store.Attachment(idOf(c, name)); err == nil {
			return a, notes, nil
		}
	}
	all, readErr := cfg.Store.Attachments()
	if readErr != nil {
		notes = append(notes, strings.Split(readErr.Error(), "\n")...)
	}
	its := slices.DeleteFunc(slices.Clone(all), func(a *Attachment) bool { return findErr != nil || idOf(c, a.Spec.Name) != a.ID })
	if len(its) == 0 {
		its = slices.DeleteFunc(all, func(a *Attachment) bool { return !a.Container.answersTo(ref) })
		if findErr == nil && c.Engine == "pid" { // the number may have been that of another process
			its = slices.DeleteFunc(its, func(a *Attachment) bool { return !cfg.Store.isIn(a, ns) })
		}
	}
	if err = findErr; len(its) > 0 || findErr == nil {
		a, err = pick(its, ref, name)
	}
	if err != nil && readErr != nil { // one of those may be it
		err = fmt.Errorf("%w; %w", err, readErr)
	}
	return a, notes, err
}

// isIn reports whether an attachment's link was put into a namespace.
func (s *Store) isIn(a *Attachment, ns *netns.NS) bool {
	records, _ := journal.Read(s.liveJournal(a.ID)) // what can be read of it
	first, _, _, err := parseJournal(records)
	return err == nil && first.Container.matches(ns)
}

// choose is the one of a container's attachments that has the name.
func pick(its []*Attachment, ref, name string) (*Attachment, error) {
	found := slices.DeleteFunc(slices.Clone(its), func(a *Attachment) bool { return name != "" && a.Spec.Name != name })
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		e := &NoAttachmentError{Container: ref, Name: name}
		for _, a := range its {
			e.Links = append(e.Links, a.Spec.Name)
		}
		return nil, e
	}
	return nil, &AmbiguousError{Container: ref, Candidates: found}
}

// NoAttachmentError is an ErrNotAttached that says what there is.
type NoAttachmentError struct {
	Container string
	Name      string   // "": any
	Links     []string // names of the container's attached links
}

func (e *NoAttachmentError) Error() string {
	if e.Name == "" {
		return e.Container + " has no attached link"
	}
	return fmt.Sprintf("%s has no attached link %q", e.Container, e.Name)
}

// Unwrap is ErrNotAttached.
func (e *NoAttachmentError) Unwrap() error { return ErrNotAttached }

// AmbiguousError says that several attachments may be meant.
type AmbiguousError struct {
	Container  string        // what was typed
	Candidates []*Attachment // at least two
}

func (e *AmbiguousError) Error() string {
	if e.SameContainer() {
		return fmt.Sprintf("%s has %d attached links", e.Container, len(e.Candidates))
	}
	return fmt.Sprintf("%q is several containers", e.Container)
}

// OneContainer tells whether the candidates are links of the same container.
func (e *AmbiguousError) SameContainer() bool {
	first := e.Candidates[0].Container.QualifiedName()
	return !slices.ContainsFunc(e.Candidates, func(a *Attachment) bool { return a.Container.QualifiedName() != first })
}
