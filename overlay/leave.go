package overlay

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"time"

	"cleat/overlay/gate"
	"cleat/overlay/registry"
)

// A host leaves its cluster in steps: it says so in its record; the leader gives other hosts members in its place, and
// then removes its member; another host removes its record, after which no host admits it; and it removes its networks
// and files.

// UsedError means that a host can't leave because containers are on networks that span hosts.
type UsedError struct{ Containers []string }

func (e *UsedError) Error() string {
	return fmt.Sprintf("%d containers of this host are on networks that span hosts, among them %s", len(e.Containers), e.Containers[0])
}

// LastHostError means that a host can't leave because it is the only one.
type LastHostError struct{}

func (*LastHostError) Error() string {
	return "this is the only host of the cluster, which ends with it"
}

// CheckUnused returns a *UsedError if containers of this host are on networks that span hosts.
func CheckUnused(ctx context.Context, d Dataplane) error {
	own, err := d.Endpoints(ctx)
	if err != nil {
		return err
	}
	e := &UsedError{}
	for _, one := range own {
		e.Containers = append(e.Containers, one.Container+" on network "+one.Network)
	}
	if len(e.Containers) == 0 {
		return nil
	}
	slices.Sort(e.Containers)
	return e
}

// leaveWithin bounds how long it takes until other hosts have the members that the registry needs.
const leaveWithin = 60 * time.Second

// leave takes this host out of the cluster, for a request. Its files stay (Discard).
func (n *Node) leave(ctx context.Context, r *http.Request) (any, error) {
	force := r.FormValue("force") != ""
	if err := CheckUnused(ctx, n.cfg.Dataplane); err != nil && !force {
		return nil, err
	}
	if n.isRemoved() {
		return struct{}{}, nil
	}
	n.mu.Lock()
	only := len(n.mirror.Hosts) == 1
	n.mu.Unlock()
	if only {
		if force {
			return struct{}{}, nil
		}
		return nil, &LastHostError{}
	}
	if external, err := n.lastAccess(n.settings.Host); err != nil {
		return nil, err
	} else if !external {
		if err := n.giveUpMember(ctx); err != nil {
			return nil, err
		}
	}
	return struct{}{}, n.askToLeave(ctx)
}

// giveUpMember makes this host's member leave the registry. On error the host takes part as before.
func (n *Node) giveUpMember(ctx context.Context) error {
	leaving := func(is bool) func(*registry.Host) { return func(h *registry.Host) { h.Leaving = is } }
	if err := n.registry.ChangeHost(ctx, n.settings.Host, leaving(true)); err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, leaveWithin)
	defer cancel()
	for {
		members, err := n.registry.Members(within)
		is := slices.ContainsFunc(members, func(m registry.Member) bool { return m.Host == n.settings.Host })
		n.mu.Lock()
		runs := n.member != nil
		n.mu.Unlock()
		if err == nil && !is && !runs {
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
			continue
		case <-within.Done():
		}
		err = errors.New("no other host has a member of the registry in its place yet")
		again, cancel := context.WithTimeout(context.WithoutCancel(ctx), exchangeWithin)
		defer cancel()
		return errors.Join(err, n.registry.ChangeHost(again, n.settings.Host, leaving(false)))
	}
}

// askToLeave asks another host to remove this one. The answer may be lost, because the other host closes the connections
// of this one.
func (n *Node) askToLeave(ctx context.Context) error {
	n.mu.Lock()
	var others []registry.Host
	for name, h := range n.mirror.Hosts {
		if _, lives := n.mirror.alive[name]; lives && name != n.settings.Host {
			others = append(others, h)
		}
	}
	n.mu.Unlock()
	err := errors.New("no other host is alive")
	for _, h := range others {
		if _, err = n.askHost(ctx, h, hostRequest{Leave: true}); err == nil {
			return nil
		}
		c, check := n.dialHost(ctx, h, gate.Host)
		if errors.As(check, new(*gate.RemovedError)) {
			return nil
		}
		if check == nil {
			c.Close()
		}
	}
	return fmt.Errorf("ask another host to remove this one: %w", err)
}

// hostLeaves removes a host that wants to leave.
func (n *Node) hostLeaves(ctx context.Context, host string) error {
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), exchangeWithin) // the request ends with the host
	defer cancel()
	if err := n.registry.RemoveHost(within, host); err != nil {
		return err
	}
	n.cfg.Log("host %s has left the cluster", host)
	return nil
}

// Discard removes what a host has of a cluster: networks that span hosts, with what is in the kernel, and files. It is
// called while no Node runs for the directory.
func Discard(ctx context.Context, path string, dataplane Dataplane) error {
	d := dir(path)
	s, err := Load(path)
	if err != nil {
		return err
	}
	m, err := d.readMirror()
	if err != nil {
		return err
	}
	if s != nil {
		self := m.Hosts[s.Host]
		self.Name, self.Address, self.MAC = s.Host, s.Address, s.MAC
		if err := dataplane.Apply(ctx, State{VNI: m.Cluster.VNI, Self: self}); err != nil {
			return err
		}
	}
	if c, can := dataplane.(Remover); can {
		if err := c.Remove(ctx); err != nil {
			return err
		}
	}
	// Last the settings: without them the host belongs to no cluster.
	for _, name := range []string{registryDir, oldRegistry, newRegistry, authorityFile, identityFile, ringFile, mirrorFile, contactFile, settingsFile} {
		if err := os.RemoveAll(d.path(name)); err != nil {
			return err
		}
	}
	return nil
}
