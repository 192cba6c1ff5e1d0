package overlay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"time"

	"cleat/overlay/registry"
)

// wantedMembers returns how many members the registry of a cluster should have. Two would be worse than one:
// both would be needed.
func wantedMembers(hosts int) int {
	switch {
	case hosts < 3:
		return 1
	case hosts < 8:
		return 3
	}
	return 5
}

// replaceAfter is how long a host with a member must be dead before another host gets a member in its place.
const replaceAfter = 5 * time.Minute

// promoteEvery is the time between attempts to let a new member vote, each of which etcd logs.
const promoteEvery = time.Second

// governMembers starts or ends this host's member of the registry as its record says. On the leader it also
// changes the members.
func (n *Node) governMembers(ctx context.Context) error {
	n.mu.Lock()
	self, known := n.mirror.Hosts[n.settings.Host]
	listed, m := n.listed, n.member
	n.mu.Unlock()
	switch {
	case !listed || !known:
		return nil
	case self.Member && m == nil:
		return n.becomeMember(ctx)
	case !self.Member && m != nil:
		n.cfg.Log("this host is no member of the registry any more")
		return n.removeMember()
	case m != nil && m.Leads():
		return n.lead(ctx)
	}
	return nil
}

// becomeMember starts a member that the leader has added.
func (n *Node) becomeMember(ctx context.Context) error {
	if err := n.fetchAuthority(ctx); err != nil {
		return err
	}
	members, err := n.registry.Members(ctx)
	if err != nil {
		return err
	}
	cluster := map[string]netip.AddrPort{}
	for _, m := range members {
		name := m.Name
		if name == "" {
			name = n.settings.Host
		}
		if cluster[name], err = gateOf(m); err != nil {
			return err
		}
	}
	if cluster[n.settings.Host] != n.settings.gate() {
		return errors.New("the registry has no member for this host yet")
	}
	if err := n.startMember(cluster); err != nil {
		return err
	}
	n.cfg.Log("this host is a member of the registry now")
	return nil
}

func gateOf(m registry.Member) (netip.AddrPort, error) {
	if len(m.URLs) == 0 {
		return netip.AddrPort{}, fmt.Errorf("member %s of the registry has no address", m.Name)
	}
	u, err := url.Parse(m.URLs[0])
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("address of member %s of the registry: %w", m.Name, err)
	}
	return netip.ParseAddrPort(u.Host)
}

// lead takes one step towards the wanted members of the registry.
func (n *Node) lead(ctx context.Context) error {
	members, err := n.registry.Members(ctx)
	if err != nil {
		return err
	}
	n.mu.Lock()
	hosts := map[netip.AddrPort]registry.Host{}
	for _, h := range n.mirror.Hosts {
		hosts[h.Gate()] = h
	}
	dead := func(h registry.Host) bool {
		_, lives := n.mirror.alive[h.Name]
		return !lives && time.Since(n.since[h.Name]) > replaceAfter
	}
	spare, spareHost := false, registry.Host{}
	for _, h := range n.mirror.Hosts {
		if _, lives := n.mirror.alive[h.Name]; lives && !h.Member && (!spare || h.Joined.Before(spareHost.Joined) || h.Joined.Equal(spareHost.Joined) && h.Name < spareHost.Name) {
			spare, spareHost = true, h
		}
	}
	wanted := wantedMembers(len(n.mirror.Hosts))
	var gone, deadMember *registry.Member
	for i, m := range members {
		at, err := gateOf(m)
		h, known := hosts[at]
		switch {
		case err != nil || !known:
			gone = &members[i]
		case dead(h) && h.Name != n.settings.Host:
			deadMember = &members[i]
		}
	}
	n.mu.Unlock()
	for _, m := range members {
		if !m.Learner || gone == &m {
			continue
		}
		at, err := gateOf(m)
		if err != nil {
			return err
		}
		if err := n.registry.ChangeHost(ctx, hosts[at].Name, func(h *registry.Host) { h.Member = true }); err != nil {
			return err // it was removed
		}
		if time.Since(n.promoted) > promoteEvery {
			n.promoted = time.Now()
			_ = n.registry.Promote(ctx, m.ID) // fails until it has caught up
		}
		return nil
	}
	switch {
	case gone != nil:
		n.cfg.Log("member %s of the registry is of a host that was removed", gone.Name)
		return n.registry.RemoveMember(ctx, gone.ID)
	case deadMember != nil && spare:
		n.cfg.Log("member %s of the registry is dead, and replaced", deadMember.Name)
		if err := n.registry.RemoveMember(ctx, deadMember.ID); err != nil {
			return err
		}
		return n.registry.ChangeHost(ctx, deadMember.Name, func(h *registry.Host) { h.Member = false })
	case len(members) < wanted && spare:
		_, err := n.registry.AddMember(ctx, spareHost.Gate()) // refused until the last one is connected for some seconds
		if err == nil {
			n.cfg.Log("host %s becomes a member of the registry", spareHost.Name)
		}
		return err
	}
	return nil
}

// missing returns the changes that make the registry's endpoints of a host those that it has.
func (m *mirror) missing(own []registry.Endpoint, host string) (changes []registry.EndpointChange) {
	has := map[string]bool{}
	for _, e := range own {
		e.Host, e.Version = host, 1
		has[e.Network+"/"+e.ID] = true
		if _, ok := m.Networks[e.Network]; !ok {
			continue
		}
		old, ok := m.ends[endpointsOf{e.Network, host}][e.ID]
		if !ok || !same(old, e) {
			changes = append(changes, registry.EndpointChange{Endpoint: e})
		}
	}
	for of, all := range m.ends {
		for id, e := range all {
			if of.host == host && !has[of.network+"/"+id] {
				changes = append(changes, registry.EndpointChange{Endpoint: e, Gone: true})
			}
		}
	}
	return changes
}
