package overlay

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"cleat/overlay/registry"
)

// A host that was away while others got new addresses, or while other hosts became members of the registry, may know no
// address of a member. It asks the hosts that it still reaches, and believes them once the member has answered: each
// host proves its name by its key. A host that was removed learns that from their refusals: its own member of the
// registry, if it had one, has stopped.

const (
	whereaboutsEvery = time.Second
	lostAfter        = 2 * time.Second // without the registry, before others are asked
	whereaboutsAsks  = 4               // hosts that are asked at a time, chosen at random
	whereaboutsWait  = 2 * time.Second // for the answer of a host
	whereaboutsRest  = 2 * time.Second // at most, at random: many hosts that are lost at once load each other
)

// findMembers finds the members of the registry if it does not answer.
func (n *Node) findMembers(ctx context.Context) error {
	n.mu.Lock()
	lost := n.lost() && !n.removal.sure
	var others []registry.Host
	for _, h := range n.mirror.Hosts {
		if h.Name != n.settings.Host {
			others = append(others, h)
		}
	}
	n.mu.Unlock()
	if !lost {
		return nil
	}
	rand.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	var asking sync.WaitGroup
	for _, h := range others[:min(len(others), whereaboutsAsks)] {
		asking.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, whereaboutsWait)
			defer cancel()
			answer, err := n.askHost(ctx, h, hostRequest{Voters: true})
			n.learn(err)
			if err == nil {
				n.tryVoters(ctx, answer.Voters)
			}
		})
	}
	asking.Wait()
	rest(ctx, rand.N(whereaboutsRest), whereaboutsRest)
	return nil
}

// tryVoters takes over what another host knows of members of the registry, as far as these answer.
func (n *Node) tryVoters(ctx context.Context, all []registry.Host) {
	n.mu.Lock()
	own := n.mirror.Hosts[n.settings.Host]
	var differ []registry.Host
	for _, v := range all {
		h, known := n.mirror.Hosts[v.Name]
		if known && v.Name != own.Name && v.Pin == h.Pin && v.Address.IsValid() && (v.Address != h.Address || v.Votes != h.Votes) {
			differ = append(differ, v)
		}
	}
	n.mu.Unlock()
	var trying sync.WaitGroup
	for _, v := range differ[:min(len(differ), whereaboutsAsks)] {
		trying.Go(func() {
			if _, err := n.askHost(ctx, v, hostRequest{Moved: &moved{own.Address, own.MTU}}); err == nil {
				n.cfg.Log("host %s, a member of the registry, is found at %s", v.Name, v.Address)
				n.update(registry.Update{Changes: []registry.Change{{Host: &v}}})
			}
		})
	}
	trying.Wait()
}
