package find

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"cleat/internal/columns"
	"cleat/internal/spell"
	"cleat/netns"
)

// NotFound means that nothing has the given name. It matches netns.ErrNotFound.
type NotFound struct {
	Word    string
	Unasked []*Unasked // engines that could not be asked
	Cause   error      // why a file is not a namespace; or nil

	engine, name string
	known        []*Found // what exists instead
}

func (e *NotFound) Error() string {
	denied := e.denied()
	switch {
	case denied != nil:
		return fmt.Sprintf("%v; nothing else is called %q", denied, cmp.Or(e.name, e.Word))
	case e.Cause != nil && errors.Is(e.Cause, netns.ErrNotFound):
		return e.Cause.Error()
	case e.engine == Process:
		return fmt.Sprintf("there is no process %s", e.name)
	case e.engine == Named || e.engine == Path:
		return fmt.Sprintf("no such network namespace: %s", e.name)
	case e.engine != "":
		return fmt.Sprintf("no %s container is called %q", e.engine, e.name)
	}
	return fmt.Sprintf("no container, and no network namespace, is called %q", e.Word)
}

// denied returns the first engine in question that the caller has no permission to ask.
func (e *NotFound) denied() *Unasked {
	for _, u := range e.Unasked {
		if (e.engine == "" || e.engine == u.Engine) && errors.Is(u.Err, fs.ErrPermission) {
			return u
		}
	}
	return nil
}

// Is reports that the error is also netns.ErrNotFound.
func (e *NotFound) Is(target error) bool { return target == netns.ErrNotFound }

func (e *NotFound) Unwrap() error { return e.Cause }

const listMax = 8

// Near returns the references of what has a similar name.
func (e *NotFound) Near() []string {
	names, refs := e.names()
	return refs[spell.Nearest(e.name, names)]
}

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

// Known returns at most 8 references of what exists, the most similar first.
func (e *NotFound) Known() []string {
	names, refs := e.names()
	var all []string
	for _, name := range spell.Order(e.name, names) {
		all = append(all, refs[name]...)
	}
	return all[:min(listMax, len(all))]
}

// Hint lists what exists, and the engines that could not be asked.
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
		if (e.engine == "" || e.engine == u.Engine) && u != e.denied() {
			lines = append(lines, fmt.Sprintf("not asked: %s: %v", u.Engine, u.Err))
		}
	}
	if e.denied() != nil {
		lines = append(lines, needsRoot)
	}
	return strings.Join(lines, "\n")
}

// otherPrefix returns the word with the engine that was probably meant, or "".
func (e *NotFound) otherPrefix() string {
	before, after, found := strings.Cut(e.Word, ":")
	engine := spell.Nearest(before, engineNames())
	if !found || e.engine != "" || engine == "" {
		return ""
	}
	return engine + ":" + after
}

const needsRoot = "sudo lets cleat ask those, too"

// Ambiguous means that a name has several matches.
type Ambiguous struct {
	Word       string
	Candidates []*Found // at least two
}

func (e *Ambiguous) Error() string {
	var all []string
	for _, c := range e.Candidates {
		all = append(all, c.String())
	}
	return fmt.Sprintf("%q is ambiguous: %s", e.Word, strings.Join(all, ", "))
}

// Hint lists references of the candidates.
func (e *Ambiguous) Hint() string {
	var all []string
	for _, c := range e.Candidates {
		ref := c.Ref()
		if e.alike(ref) {
			ref = c.Engine + ":" + c.ID // the whole id, because prefixes may be equal
		}
		all = append(all, ref)
	}
	return "give one of: " + pasted(all, ", ")
}

// pasted quotes words for a shell: engines and their users chose the names.
func pasted(words []string, between string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = columns.Word(w)
	}
	return strings.Join(quoted, between)
}

// alike reports whether several candidates have this reference.
func (e *Ambiguous) alike(ref string) bool {
	first := slices.IndexFunc(e.Candidates, func(c *Found) bool { return c.Ref() == ref })
	return slices.ContainsFunc(e.Candidates[first+1:], func(c *Found) bool { return c.Ref() == ref })
}

// NotRunning means that a container exists but has no process.
type NotRunning struct {
	Found  Found  // without PID and what depends on it
	State  string // the engine's word: "exited", "created", "stopped" …
	Remedy string // command that starts it; "" if unknown

	others []string // references of running containers with its name
}

func (e *NotRunning) Error() string { return fmt.Sprintf("%s is not running: %s", &e.Found, e.State) }

// Hint returns how to start the container, and what else may be meant.
func (e *NotRunning) Hint() string {
	var lines []string
	if e.Remedy != "" {
		lines = append(lines, "start it: "+e.Remedy)
	}
	if len(e.others) > 0 {
		lines = append(lines, "running under that name: "+pasted(e.others, ", "))
	}
	return strings.Join(lines, "\n")
}

// Unasked means that an engine could not be asked. Err wraps fs.ErrPermission if
// permissions are missing.
type Unasked struct {
	Engine string
	Err    error
}

func (e *Unasked) Error() string { return fmt.Sprintf("ask %s for containers: %v", e.Engine, e.Err) }

func (e *Unasked) Unwrap() error { return e.Err }

// Hint returns a remedy if permissions are missing.
func (e *Unasked) Hint() string {
	if errors.Is(e.Err, fs.ErrPermission) {
		return "run it with sudo"
	}
	return ""
}
