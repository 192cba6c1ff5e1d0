package attach

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"cleat/internal/statedir"
)

// Container is who is wired: a container, or whatever else has a network namespace.
type Container struct {
	Ref      string `json:"ref"`              // as it was typed
	Engine   string `json:"engine,omitempty"` // e.g. "docker"; "netns" for a named namespace, "pid", "path"
	ID       string `json:"id,omitempty"`     // the engine's
	Name     string `json:"name"`             // short and for people; with Engine it is the same as long as it is the same container to them
	PID      int    `json:"pid,omitempty"`    // of a process inside; 0: none is known
	OwnerUID int    `json:"owner,omitempty"`  // uid of whose engine it is
	Path     string `json:"path"`             // where its network namespace can be opened as long as it lives

	SilentEngines string `json:"-"` // engines that were asked for it and did not answer, as text
	HostNetwork   bool   `json:"-"` // its engine gave it the network of the machine itself
	SharedWith    string `json:"-"` // others that have the same network, as text: what is attached is theirs, too
}

// Returns reports whether the container can come back under its name. A process can't: its
// number, in a path too, is another's then.
func (c Container) CanReturn() bool {
	return c.Engine != "pid" && (c.Engine != "path" || !strings.HasPrefix(filepath.Clean(c.Path), "/proc/"))
}

// checkReturns refuses to keep what somebody else could put another network in the place of.
func (c Container) checkReturns() error {
	if c.Engine != "path" || !c.CanReturn() {
		return nil
	}
	if err := statedir.Check(filepath.Dir(c.Path)); err != nil {
		return &SpecError{Param: "keep", Reason: "others could put another network at " + c.Path}
	}
	return nil
}

// Reference is what only this container is called: "podman:web".
func (c Container) QualifiedName() string { return c.Engine + ":" + c.Name }

// Word is what the container is called where a command takes it: with its engine in front
// if it is in a part of that, of a user's or a namespace.
func (c Container) ShortName() string {
	if c.Engine != "path" && strings.Contains(c.Name, "/") {
		return c.QualifiedName()
	}
	return c.Name
}

// answersTo tells whether a person may mean this container by ref.
func (c Container) answersTo(ref string) bool {
	const shortID = 4 // hexadecimal digits that are enough, if nobody else has them
	return ref == c.Ref || ref == c.Name || ref == c.Path || c.PID != 0 && ref == strconv.Itoa(c.PID) ||
		len(ref) >= shortID && strings.HasPrefix(c.ID, ref) || ref == c.QualifiedName()
}

// waited says who was silent when the container was looked for.
func (c Container) silenceNote() string {
	return fmt.Sprintf("%s was waited for in vain: who gives %s for a name has nobody else asked", c.SilentEngines, c.QualifiedName())
}
