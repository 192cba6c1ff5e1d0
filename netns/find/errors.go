package find

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"cleat/internal/columns"
	"cleat/internal/spell"
	"cleat/netns"
)

// NotFound says that nothing answers to a word. It matches netns.ErrNotFound.
type NotFound struct {
	Word    string
	Asked   []string   // engines that know of nothing by this name
	Unasked []*Unasked // engines that may know
	Cause   error      // why a file is none; or nil

	engine, name string
	known        []*Found // what there is instead
}

func (e *NotFound) Error() string {
	switch {
	case e.Cause != nil && errors.Is(e.Cause, netns.ErrNotFound):
		return e.Cause.Error()
	case e.engine == Process:
		return fmt.Sprintf("no process has the number %s", e.name)
	case e.engine == Named || e.engine == Path:
		return fmt.Sprintf("no such network namespace: %s", e.name)
	case e.engine != "":
		return fmt.Sprintf("no %s container is called %q", e.engine, e.name)
	}
	return fmt.Sprintf("no container, and no network namespace, is called %q", e.Word)
}

// Is: it is also netns.ErrNotFound.
func (e *NotFound) Is(target error) bool { return target == netns.ErrNotFound }

func (e *NotFound) Unwrap() error { return e.Cause }

// listMax is how many references a hint lists.
const listMax = 8

// Near are the references of what is called nearly so.
func (e *NotFound) Near() []string {
	names, refs := e.names()
	return refs[spell.Nearest(e.name, names)]
}

// names are those of all that is there, with their references.
func (e *NotFound) names() (names []string, refs map[string][]string) {
	refs = map[string][]string{}
	for _, f := range e.known {
		if name := f.label(); name != "" {
			if refs[name] == nil {
				names = append(names, name)
			}
			refs[name] = append(refs[name], f.Ref())
		}
	}
	return names, refs
}

// Known are references of what there is, the likeliest first, at most 8.
func (e *NotFound) Known() []string {
	names, refs := e.names()
	var all []string
	for _, name := range spell.Order(e.name, names) {
		all = append(all, refs[name]...)
	}
	return all[:min(listMax, len(all))]
}

// Hint says what there is, and who could not be asked.
func (e *NotFound) Hint() string {
	var lines []string
	near := e.Near()
	if prefixed := e.otherPrefix(); prefixed != "" {
		near = []string{prefixed}
	}
	if len(near) > 0 {
		lines = append(lines, fmt.Sprintf("did you mean %s?", pasted(near, " or ")))
	} else {
		if known := e.Known(); len(known) > 0 && e.engine != Process && e.engine != Path {
			lines = append(lines, "known: "+pasted(known, ", "))
		}
		lines = append(lines, "give a container, a process id, a name from `ip netns list`, or a path such as /proc/PID/ns/net")
	}
	for _, u := range e.Unasked {
		if e.engine == "" || e.engine == u.Engine {
			lines = append(lines, fmt.Sprintf("not asked: %s", describe(u.Engine, u.Err)))
		}
	}
	if slices.ContainsFunc(e.Unasked, func(u *Unasked) bool { return errors.Is(u.Err, fs.ErrPermission) }) {
		lines = append(lines, needsRoot)
	}
	return strings.Join(lines, "\n")
}

// otherPrefix is the word with the engine that was probably meant; "" where none
// was.
func (e *NotFound) otherPrefix() string {
	before, after, found := strings.Cut(e.Word, ":")
	engine := spell.Nearest(before, engineNames())
	if !found || e.engine != "" || engine == "" {
		return ""
	}
	return engine + ":" + after
}

// needsRoot is a remedy.
const needsRoot = "to ask those, too, run it with sudo"

// Ambiguous says that a word means several things.
type Ambiguous struct {
	Word       string
	Candidates []*Found // at least two
}

func (e *Ambiguous) Error() string {
	var all []string
	for _, c := range e.Candidates {
		all = append(all, c.String())
	}
	return fmt.Sprintf("%q is several: %s", e.Word, strings.Join(all, ", "))
}

// Hint lists what names one of them.
func (e *Ambiguous) Hint() string {
	var all []string
	for _, c := range e.Candidates {
		ref := c.Ref()
		if e.alike(ref) {
			ref = c.Engine + ":" + c.ID // whole, since beginnings may be the same
		}
		all = append(all, ref)
	}
	return "give one of: " + pasted(all, ", ")
}

// pasted are words to be pasted into a shell: engines and their users chose the names.
func pasted(words []string, between string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = columns.Word(w)
	}
	return strings.Join(quoted, between)
}

// alike: several candidates have this reference.
func (e *Ambiguous) alike(ref string) bool {
	first := slices.IndexFunc(e.Candidates, func(c *Found) bool { return c.Ref() == ref })
	return slices.ContainsFunc(e.Candidates[first+1:], func(c *Found) bool { return c.Ref() == ref })
}

// NotRunning says that a container exists and has no process.
type NotRunning struct {
	Found  Found  // without PID and what follows from it
	State  string // as its engine calls it: "exited", "created", "stopped" …
	Remedy string // the command that starts it; "" if unknown

	others []string // references of what runs by its name elsewhere
}

func (e *NotRunning) Error() string { return fmt.Sprintf("%s is not running: %s", &e.Found, e.State) }

// Hint is how to start it, and what else may be meant.
func (e *NotRunning) Hint() string {
	var lines []string
	if e.Remedy != "" {
		lines = append(lines, "start it: "+e.Remedy)
	}
	if len(e.others) > 0 {
		lines = append(lines, "by that name there runs "+pasted(e.others, ", "))
	}
	return strings.Join(lines, "\n")
}

// Unasked says that an engine could not be asked. Err wraps fs.ErrPermission where
// rights are missing.
type Unasked struct {
	Engine string
	Err    error
}

func (e *Unasked) Error() string { return fmt.Sprintf("ask %s for containers: %v", e.Engine, e.Err) }

func (e *Unasked) Unwrap() error { return e.Err }

// Hint is set where rights are missing.
func (e *Unasked) Hint() string {
	if errors.Is(e.Err, fs.ErrPermission) {
		return "run it with sudo"
	}
	return ""
}
