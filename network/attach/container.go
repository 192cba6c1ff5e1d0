package attach

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"cleat/internal/statedir"
)

// Container is a container, or anything else that has a network namespace.
type Container struct {
	Ref      string `json:"ref"`              // as it was typed
	Engine   string `json:"engine,omitempty"` // e.g. "docker"; "netns" for a named namespace, "pid", "path"
	ID       string `json:"id,omitempty"`     // the engine's
	Name     string `json:"name"`             // with Engine it identifies the container, even after a restart
	PID      int    `json:"pid,omitempty"`    // of a process in the container; 0: unknown
	OwnerUID int    `json:"owner,omitempty"`  // user who runs the engine
	Path     string `json:"path"`             // of its network namespace, valid while the container runs

	// Manager is the contract by which the container's engine attaches and detaches it itself, also
	// after a restart, such as "cni"; "": a person does.
	Manager string `json:"manager,omitempty"`
	// Key identifies the container in files instead of Name, which its engine does not tell in time, or
	// gives to several containers at once.
	Key string `json:"key,omitempty"`
	// ResolvConfFile is the host's file that the container sees as its resolv.conf; "": it is found
	// through the container's process.
	ResolvConfFile string `json:"resolv_conf,omitempty"`

	SilentEngines string `json:"-"` // engines that did not answer when the container was looked up
	HostNetwork   bool   `json:"-"` // the engine gave it the host's network
	SharedWith    string `json:"-"` // other containers in the same network namespace
}

// Engines of containers that package netns/find does not find. Only the contract knows them by which they
// are attached (Container.Manager).
const (
	EnginePod = "pod" // a pod of Kubernetes
	EngineCNI = "cni" // nothing but the id is known
)

// CanReturn reports whether the container is to be attached again when it is restarted under its name. A
// process can't be: its number, also as part of a path, will belong to another process. A container with
// a Manager is attached again by its engine.
func (c Container) CanReturn() bool {
	return c.Manager == "" && c.Engine != "pid" && (c.Engine != "path" || !strings.HasPrefix(filepath.Clean(c.Path), "/proc/"))
}

// checkCanKeep rejects a path at which other users could put another network namespace.
func (c Container) checkCanKeep() error {
	if c.Engine == "path" && c.CanReturn() && statedir.Check(filepath.Dir(c.Path)) != nil {
		return &SpecError{Param: "keep", Reason: "other users could put another network namespace at " + c.Path}
	}
	return nil
}

// FileName returns a name for files about the container, e.g. "podman.web". No other container
// has it. It has no '~' and no '/'.
func (c Container) FileName() string {
	return cmp.Or(c.Manager, c.Engine) + "." + fileName(cmp.Or(c.Key, c.Name))
}

// QualifiedName returns a name that no other container has, e.g. "podman:web".
func (c Container) QualifiedName() string { return c.Engine + ":" + c.Name }

// ShortName returns the name as a command accepts it. It includes the engine if the
// container belongs to another user or to a namespace of the engine.
func (c Container) ShortName() string {
	if c.Engine != "path" && strings.Contains(c.Name, "/") {
		return c.QualifiedName()
	}
	return c.Name
}

// Matches reports whether ref can refer to the container.
func (c Container) Matches(ref string) bool {
	const minIDDigits = 4 // of an id's beginning
	return ref == c.Ref || ref == c.Name || ref == c.Path || c.PID != 0 && ref == strconv.Itoa(c.PID) ||
		len(ref) >= minIDDigits && strings.HasPrefix(c.ID, ref) || ref == c.QualifiedName()
}

// silenceNote says which engines delayed the lookup of the container.
func (c Container) silenceNote() string {
	return fmt.Sprintf("%s did not answer; use the name %s so that only its engine is asked", c.SilentEngines, c.QualifiedName())
}
