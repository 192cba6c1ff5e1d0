package attach

import (
	"errors"
	"fmt"
	"net/netip"

	"cleat/netns"
	"cleat/network/resolvconf"
)

// ResolvConf returns the path of the container's resolv.conf as seen from the host, for
// resolvconf.Open. The error is a *SpecError if the container has none of its own that could be
// written.
func (c Container) ResolvConf() (string, error) {
	if c.ResolvConfFile != "" {
		return c.ResolvConfFile, nil
	}
	if c.Engine == "netns" {
		return resolvconf.NamedPath(c.Name), nil
	}
	if c.PID == 0 {
		return "", &SpecError{Param: "dns", Reason: "the container has no known process through which its resolv.conf could be written"}
	}
	path, err := resolvconf.ProcessPath(c.PID)
	if errors.Is(err, resolvconf.ErrHostFile) {
		err = &SpecError{Param: "dns", Reason: fmt.Sprintf("process %d shares the host's files, so its resolv.conf is the host's", c.PID)}
	}
	return path, err
}

// HasResolvConf reports whether the container has a resolv.conf of its own that can be written.
func (c Container) HasResolvConf() bool {
	_, err := c.ResolvConf()
	return err == nil
}

// WriteDNS replaces the name servers in the container's resolv.conf.
type WriteDNS struct {
	Path    string       `json:"path"` // as seen from the host
	Servers []netip.Addr `json:"servers"`
}

func (s WriteDNS) String() string {
	return fmt.Sprintf("write name servers %v to %s", s.Servers, s.Path)
}

func (s WriteDNS) do(r *run) error {
	f, err := resolvconf.Open(s.Path, r.cont.ns)
	if err != nil {
		return err
	}
	defer f.Close()
	edit, err := f.Plan(s.Servers)
	if err != nil {
		return err
	}
	if err := r.record(Undo{ResolvConf: &undoResolvConf{r.cont.ref, *edit}}); err != nil {
		return err
	}
	return f.Apply(edit)
}

// undoResolvConf restores a resolv.conf whose name servers were replaced.
type undoResolvConf struct {
	NS nsRef `json:"where"` // the namespace of the process that the path goes through
	resolvconf.Edit
}

// undo restores the file. If it is a container's, a failure is only noted: a container must
// not be able to keep the rest from being undone.
func (m *undoResolvConf) undo(u *undoer) error {
	var ns *netns.NS
	if resolvconf.InContainer(m.Path) {
		n, err := u.namespace(m.NS)
		if n == nil {
			return err // if the namespace is gone, so is the process
		}
		ns = n.ns
	}
	err := m.Revert(ns)
	if err != nil && ns != nil {
		u.note("the container's name servers can't be restored: %v", err)
		return nil
	}
	return err
}
