package overlay

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"cleat/overlay/member"
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
	err := errors.Join(n.followRestored(), n.resumeMember(ctx))
	n.followMembers()
	if err != nil {
		return err
	}
	n.mu.Lock()
	self, known := n.mirror.Hosts[n.settings.Host]
	listed, m, external := n.listed, n.member, n.mirror.Cluster.External
	n.mu.Unlock()
	switch {
	case external && (!listed || !known):
		return nil
	case external:
		return n.governExternal(ctx, self)
	case listed && !known && m != nil:
		n.cfg.Log("this host was removed, and its member of the registry ends")
		n.stopMember()
		return nil
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
	var cluster []string
	for _, m := range members {
		cluster = append(cluster, m.Host)
		if m.Host == n.settings.Host && m.Started {
			n.cfg.Log("the data of this host's member of the registry is lost; the member leaves the registry and begins anew")
			return n.leaveRegistry(ctx, m.ID)
		}
	}
	if !slices.Contains(cluster, n.settings.Host) {
		return errors.New("the registry has no member for this host yet")
	}
	if !member.Exists(n.dir.path(registryDir)) { // a start that was interrupted leaves other files
		if err := os.RemoveAll(n.dir.path(registryDir)); err != nil {
			return err
		}
	}
	if err := checkSpace(n.cfg.Dir); err != nil {
		return err
	}
	if err := n.startMember(cluster); err != nil {
		return err
	}
	n.cfg.Log("this host is a member of the registry now")
	return nil
}

// lead takes one step towards the wanted members of the registry. Members are added in pairs, and vote once both
// have caught up: with two voters, the loss of either would be that of the registry.
func (n *Node) lead(ctx context.Context) error {
	members, err := n.registry.Members(ctx)
	if err != nil {
		return err
	}
	p := n.plan(members)
	for host, votes := range p.unrecorded {
		if err := n.registry.ChangeHost(ctx, host, func(h *registry.Host) { h.Member, h.Votes = true, votes }); err != nil {
			return err // it was removed
		}
	}
	switch {
	case p.leaving != nil:
		if !n.majorityAnswers(ctx, p.voters) {
			return nil // another one has just died, which its record does not say yet
		}
		n.cfg.Log("the member of host %s, which leaves the cluster, leaves the registry", p.leaving.Host)
		return dropMember(ctx, n.registry, p.leaving)
	case p.left != "": // whoever removed the member has ended in between
		return unrecord(ctx, n.registry, p.left)
	case p.orphan != nil:
		n.cfg.Log("the member of host %s, which was removed, leaves the registry", p.orphan.Host)
		return n.registry.RemoveMember(ctx, p.orphan.ID)
	case p.dead != nil && len(p.spare) > 0:
		n.cfg.Log("the member of host %s, which is dead, leaves the registry", p.dead.Host)
		return dropMember(ctx, n.registry, p.dead)
	case len(p.voters)+len(p.learners) < p.wanted && len(p.learners) < member.MaxLearners && len(p.spare) > 0:
		host := p.spare[0]
		if err = n.registry.AddMember(ctx, host.Name); err == nil {
			n.cfg.Log("host %s becomes a member of the registry", host.Name)
		}
		return err
	case len(p.learners) > 0 && (len(p.voters)+len(p.learners))%2 == 1 && time.Since(n.promoted) > promoteEvery:
		return n.promote(ctx, members)
	}
	return nil
}

// majorityAnswers reports whether most of some hosts' members answer at this moment.
func (n *Node) majorityAnswers(ctx context.Context, voters []string) bool {
	answer := 0
	for _, host := range voters {
		n.mu.Lock()
		at, own := n.mirror.Hosts[host].Gate(), n.settings.gate()
		n.mu.Unlock()
		if host == n.settings.Host || n.registry.HasCaughtUp(ctx, at, own) {
			answer++
		}
	}
	return 2*answer > len(voters)
}

// membership is what changes the members of a registry.
type membership interface {
	RemoveMember(ctx context.Context, id uint64) error
	ChangeHost(ctx context.Context, host string, change func(*registry.Host)) error
}

// dropMember removes a member from the registry, and then from the record of its host, by which the member ends. It may
// be needed until it is removed: one of two is.
func dropMember(ctx context.Context, r membership, m *registry.Member) error {
	if err := r.RemoveMember(ctx, m.ID); err != nil {
		return err
	}
	return unrecord(ctx, r, m.Host)
}

// unrecord makes the record of a host say that it has no member.
func unrecord(ctx context.Context, r membership, host string) error {
	return r.ChangeHost(ctx, host, func(h *registry.Host) { h.Member, h.Votes = false, false })
}

// plan is what the leader sees of the members of the registry.
type plan struct {
	wanted           int              // voters
	voters, learners []string         // their hosts
	unrecorded       map[string]bool  // hosts whose record does not say so yet: whether their member votes
	orphan           *registry.Member // of a host that was removed
	dead             *registry.Member // of a host that is dead for long
	leaving          *registry.Member // of a host that leaves, and is not needed any more
	left             string           // a host whose record says that it has a member, which it has no more
	spare            []registry.Host  // that could become members, the first one next
}

func (n *Node) plan(members []registry.Member) (p plan) {
	n.mu.Lock()
	defer n.mu.Unlock()
	isMember := map[string]bool{}
	p.unrecorded = map[string]bool{}
	stay, lives := 0, 0
	for _, h := range n.mirror.Hosts {
		if !h.Leaving {
			stay++
		}
	}
	p.wanted = wantedMembers(stay)
	for i, m := range members {
		h, known := n.mirror.Hosts[m.Host]
		if !known {
			p.orphan = &members[i]
			continue
		}
		isMember[h.Name] = true
		if h.Leaving {
			p.leaving = &members[i]
			continue
		}
		if !h.Member || h.Votes == m.Learner {
			p.unrecorded[h.Name] = !m.Learner
		}
		_, alive := n.mirror.alive[h.Name]
		if alive && !m.Learner {
			lives++
		}
		switch {
		case !alive && h.Name != n.settings.Host && n.deadFor(h.Name) > replaceAfter:
			p.dead = &members[i]
		case m.Learner:
			p.learners = append(p.learners, h.Name)
		default:
			p.voters = append(p.voters, h.Name)
		}
	}
	defer func() {
		if more := len(p.voters) < p.wanted && len(p.learners)+len(p.spare) > 0; more || 2*lives <= len(p.voters) {
			p.leaving = nil // it is needed
		}
	}()
	for _, h := range n.mirror.Hosts {
		if h.Member && !isMember[h.Name] {
			p.left = h.Name
		}
		if _, lives := n.mirror.alive[h.Name]; lives && !isMember[h.Name] && !h.Leaving {
			p.spare = append(p.spare, h)
		}
	}
	slices.SortFunc(p.spare, func(a, b registry.Host) int { return cmp.Or(a.Joined.Compare(b.Joined), cmp.Compare(a.Name, b.Name)) })
	return p
}

// promote lets all learners vote, if all have caught up.
func (n *Node) promote(ctx context.Context, members []registry.Member) error {
	n.promoted = time.Now()
	for _, m := range members {
		if !m.Learner {
			continue
		}
		n.mu.Lock()
		at, own := n.mirror.Hosts[m.Host].Gate(), n.settings.gate()
		n.mu.Unlock()
		if !m.Started || !n.registry.HasCaughtUp(ctx, at, own) {
			return nil // soon
		}
	}
	for _, m := range members {
		if !m.Learner {
			continue
		}
		if err := n.registry.Promote(ctx, m.ID); err != nil {
			return err
		}
		n.cfg.Log("the member of host %s votes", m.Host)
	}
	return nil
}

// deadFor returns for how long this host knows that another one is dead. It is called with mu held.
func (n *Node) deadFor(host string) time.Duration {
	return min(time.Since(n.since[host]), time.Since(n.listedAt))
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
		of := endpointsOf{e.Network, host}
		old, ok := m.ends[of].open().get(of, e.ID)
		if !ok || !same(old, e) {
			changes = append(changes, registry.EndpointChange{Endpoint: e})
		}
	}
	for of, all := range m.ends {
		if of.host != host {
			continue
		}
		for _, e := range all.open().all(of) {
			if !has[of.network+"/"+e.ID] {
				changes = append(changes, registry.EndpointChange{Endpoint: e, Gone: true})
			}
		}
	}
	return changes
}
