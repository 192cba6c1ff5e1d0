package overlay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"cleat/internal/statedir"
	"cleat/overlay/registry"

	"golang.org/x/sys/unix"
)

// The addresses of a host that is dead for longer than Cluster.ForgetAfter are free for others. The host may run
// nevertheless, cut off from the registry. So it counts the time since the registry last answered it, by a clock that
// nobody sets, and gives out no addresses any more before others may have them. The leader counts from later on than
// the host: from when the host's lease has ended.
//
// Once the host is back it gets those of its blocks again that are free, and asks others for the addresses that they
// had lent. A container whose address another host has is disconnected.

// DefaultForgetAfter is how long a host must be dead until others may have its addresses.
const DefaultForgetAfter = 24 * time.Hour

// LeastForgetAfter is the shortest such time.
const LeastForgetAfter = 5 * time.Second

// forgetAfter returns how long a host must be dead until others may have its addresses. ok is false if that is never.
func forgetAfter(c registry.Cluster) (d time.Duration, ok bool) {
	if c.ForgetAfter == 0 {
		return DefaultForgetAfter, true
	}
	return c.ForgetAfter, c.ForgetAfter > 0
}

// holdAfter returns when a host that is cut off stops giving out addresses: before others may have them, also if
// clocks differ in speed and the host was busy.
func holdAfter(c registry.Cluster) (d time.Duration, ok bool) {
	d, ok = forgetAfter(c)
	return d / 10 * 8, ok
}

// contact is when the registry last answered this host.
type contact struct {
	Boot   string        `json:"boot"`   // boot id of the kernel
	Uptime time.Duration `json:"uptime"` // of the kernel, sleep included
	Wall   time.Time     `json:"wall"`   // for a time after a reboot
}

// now returns the present as a contact.
func now(boot string) contact {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return contact{} // there is no kernel without it; long ago
	}
	return contact{boot, time.Duration(t.Nano()), time.Now().UTC()}
}

// since returns the time since a contact. After a reboot it goes by the clock, which may have been set: a clock that
// went back says nothing, and the contact was long ago.
func (c contact) since(now contact) time.Duration {
	const longAgo = 1<<63 - 1
	d := now.Uptime - c.Uptime
	if c.Boot != now.Boot {
		d = now.Wall.Sub(c.Wall)
	}
	if c.Boot == "" || d < 0 {
		return longAgo
	}
	return d
}

// readContact returns what the file has. A host that has just joined counts from now on.
func (d dir) readContact(boot string) (contact, error) {
	c, err := statedir.ReadJSON[contact](d.path(contactFile))
	if err != nil || c == nil {
		return now(boot), err
	}
	return *c, nil
}

// expired reports whether other hosts may have this host's addresses soon. It is called with mu held, or by New.
func (n *Node) expired() bool {
	after, ok := holdAfter(n.mirror.Cluster)
	return ok && n.contact.since(now(n.cfg.Boot)) > after
}

// HeldError is the problem of a host that was cut off from the registry for long.
type HeldError struct{ After time.Duration }

func (e *HeldError) Error() string {
	return fmt.Sprintf("the registry has not answered this host for %s, so other hosts may soon have its addresses: containers get none here until it answers", e.After)
}

// hold stops giving out addresses while other hosts may have them.
func (n *Node) hold(ctx context.Context) error {
	n.mu.Lock()
	expired, held, answers, last := n.expired(), n.held, n.answers, n.contact
	after, _ := holdAfter(n.mirror.Cluster)
	n.mu.Unlock()
	if err := n.saveContact(last, after); err != nil {
		return err
	}
	switch {
	case expired:
		n.setHeld(true)
		return &HeldError{after}
	case !held:
		return nil
	case !answers:
		return &HeldError{after}
	}
	// The registry answers again. First this host must know what it has.
	has, err := n.registry.BlocksOf(ctx, n.settings.Host)
	if err != nil {
		return err
	}
	n.mu.Lock()
	listed, own := n.listed, n.mirror.blocksOf(n.settings.Host)
	n.mu.Unlock()
	for _, b := range own {
		b.Version = 0
		if !slices.ContainsFunc(has, func(o registry.Block) bool { o.Version = 0; return o == b }) {
			return &HeldError{after}
		}
	}
	if !listed {
		return &HeldError{after}
	}
	n.setHeld(false)
	return nil
}

func (n *Node) setHeld(held bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changeHeld(held)
}

// changeHeld is setHeld. It is called with mu held.
func (n *Node) changeHeld(held bool) {
	if n.held == held {
		return
	}
	n.held = held
	n.changes++
	signal(n.apply)
	signal(n.claim)
}

// saveContact writes the file from time to time. What it has is earlier than the last contact.
func (n *Node) saveContact(last contact, after time.Duration) error {
	const seldom = time.Minute
	every := seldom
	if after > 0 { // not never
		every = min(seldom, after/20)
	}
	n.mu.Lock()
	saves := n.saves
	n.mu.Unlock()
	if saves.Boot == last.Boot && last.Uptime-saves.Uptime < every {
		return nil
	}
	if err := statedir.WriteJSON(n.dir.path(contactFile), last); err != nil {
		return err
	}
	n.mu.Lock()
	n.saves = last
	n.mu.Unlock()
	return nil
}

// forget frees the addresses of hosts that are dead for long. Only one host does.
func (n *Node) forget(ctx context.Context) error {
	n.mu.Lock()
	after, ever := forgetAfter(n.mirror.Cluster)
	var dead []string
	for name := range n.mirror.Hosts {
		_, lives := n.mirror.alive[name]
		if ever && n.listed && n.answers && n.leads() && !lives && name != n.settings.Host && n.deadFor(name) > after && len(n.mirror.blocksOf(name)) > 0 {
			dead = append(dead, name)
		}
	}
	n.mu.Unlock()
	for _, name := range dead {
		ok, err := n.registry.Forget(ctx, name)
		if err != nil {
			return err
		}
		if ok {
			n.cfg.Log("host %s is dead for %s, and its addresses are free", name, after)
		}
	}
	return nil
}

// noteTaken notes which blocks the registry has taken from this host. It is called with mu held.
func (n *Node) noteTaken(had []registry.Block) {
	for _, b := range had {
		if now, has := n.mirror.Blocks[b.Network][b.Prefix.String()]; !has || now.Host != b.Host {
			n.taken[blockKey(b)] = b
		}
	}
	for key, b := range n.taken {
		now, has := n.mirror.Blocks[b.Network][b.Prefix.String()]
		// Another network may have the name by now.
		if net, exists := n.mirror.Networks[b.Network]; has || !exists || subnetOf(net, b.Prefix.Addr()) < 0 {
			delete(n.taken, key)
			if has && now.Host != b.Host {
				n.cfg.Log("block %s of network %s belongs to host %s now", b.Prefix, b.Network, now.Host)
			}
		}
	}
}

// reclaim gets this host's blocks back that the registry has taken and nobody else has.
func (n *Node) reclaim(ctx context.Context) error {
	n.mu.Lock()
	var all []registry.Block
	for _, b := range n.taken {
		if !b.Prefix.IsSingleIP() {
			all = append(all, b)
		}
	}
	n.mu.Unlock()
	var errs []error
	for _, b := range all {
		ok, err := n.registry.ClaimBlock(ctx, b)
		if errs = append(errs, err); ok {
			n.took(b)
		}
		if err == nil {
			n.mu.Lock()
			delete(n.taken, blockKey(b))
			n.mu.Unlock()
		}
	}
	return errors.Join(errs...)
}

// foreignEndpoint is a container of this host with an address that another host has.
type foreignEndpoint struct {
	registry.Endpoint
	address netip.Addr
	block   registry.Block
}

// withoutTaken returns the endpoints of this host without those whose address another host has, and the blocks of
// addresses that nobody has.
func (m *mirror) withoutTaken(own []registry.Endpoint) (left []registry.Endpoint, foreign []foreignEndpoint, free []registry.Block) {
	for _, e := range own {
		taken := false
		for _, a := range e.Addresses {
			b, ok := m.owner(e.Network, a)
			if ok && b.Host != m.self {
				foreign = append(foreign, foreignEndpoint{e, a, b})
				taken = true
				break
			}
			net := m.Networks[e.Network]
			if i := subnetOf(net, a); !ok && i >= 0 {
				if p, err := a.Prefix(net.Subnets[i].BlockBits); err == nil {
					free = append(free, registry.Block{Network: e.Network, Prefix: p, Host: m.self})
				}
			}
		}
		if !taken {
			left = append(left, e)
		}
	}
	return left, foreign, free
}

// claimFree gets this host the blocks of addresses that its containers have and nobody else does: the host was away
// for long, or was removed and has joined again.
func (n *Node) claimFree(ctx context.Context, free []registry.Block) error {
	var errs []error
	for _, b := range free {
		ok, err := n.registry.ClaimBlock(ctx, b)
		if errs = append(errs, err); ok {
			n.took(b)
		}
	}
	return errors.Join(errs...)
}

// keepForeign gets this host the addresses of its containers that lie in blocks of other hosts: those had lent them, and
// the registry has forgotten it while this host was away or removed. A container whose address another one has is
// disconnected, and so is one whose address the other host does not lend again for askFor.
func (n *Node) keepForeign(ctx context.Context, all []foreignEndpoint) error {
	var errs []error
	asking := map[string]time.Time{}
	silent := map[string]error{} // hosts that did not answer just now
	for _, e := range all {
		now, err := n.registry.Block(ctx, e.block)
		if err != nil || now.Host != e.block.Host {
			if !errors.As(err, new(*registry.NotFoundError)) {
				errs = append(errs, err)
			}
			continue // this host does not know the present state yet
		}
		if !n.isGiven(e) {
			key := e.Network + "/" + e.ID
			since, again := n.asking[key]
			if !again {
				since = time.Now()
			}
			err := silent[now.Host]
			if err == nil {
				err = n.regain(ctx, e)
			}
			if err == nil {
				continue
			}
			if !errors.As(err, new(*answerError)) { // no other container waits for it in vain
				silent[now.Host] = err
			}
			if asking[key] = since; time.Since(since) < askFor {
				errs = append(errs, fmt.Errorf("address %s of container %s is one of host %s, which has not lent it again yet: %w", e.address, e.Container, now.Host, err))
				continue
			}
		}
		errs = append(errs, n.cutOff(ctx, e))
	}
	n.asking = asking
	return errors.Join(errs...)
}

// askFor is how long another host is asked for the address of a container: much longer than a host that has just joined
// needs to reach it.
const askFor = 5 * time.Second

// isGiven reports whether another host has an address alone, or for a container.
func (n *Node) isGiven(e foreignEndpoint) bool {
	if e.block.Prefix.IsSingleIP() {
		return true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.ContainsFunc(n.mirror.endpoints(endpointsOf{e.Network, e.block.Host}), func(o registry.Endpoint) bool {
		return slices.Contains(o.Addresses, e.address)
	})
}

// regain asks the host that has the block of a container's address to lend it.
func (n *Node) regain(ctx context.Context, e foreignEndpoint) error {
	n.mu.Lock()
	owner := n.mirror.Hosts[e.block.Host]
	n.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	if _, err := n.askHost(ctx, owner, hostRequest{Lend: &loan{Network: e.Network, Address: e.address}}); err != nil {
		return err
	}
	n.took(registry.Block{Network: e.Network, Prefix: single(e.address), Host: n.settings.Host})
	signal(n.publish)
	n.cfg.Log("host %s lends the address %s of container %s again", owner.Name, e.address, e.Container)
	return nil
}

// cutOff disconnects a container with an address that another host has.
func (n *Node) cutOff(ctx context.Context, e foreignEndpoint) error {
	d, can := n.cfg.Dataplane.(Disconnecter)
	if !can {
		return fmt.Errorf("container %s has the address %s of network %s, which belongs to host %s", e.Container, e.address, e.Network, e.block.Host)
	}
	if err := d.Disconnect(ctx, e.Endpoint); err != nil {
		return err
	}
	n.problem(cutProblem+e.Network+"/"+e.ID, fmt.Errorf("container %s was disconnected from network %s: host %s has its address %s, because this host was away for long. "+
		"It gets another one by: cleat net connect %[2]s %[1]s", e.Container, e.Network, e.block.Host, e.address))
	return nil
}

// cutProblem begins what a problem is about that is over when the container is connected again.
const cutProblem = "cut/"

// reconnected ends the problems of containers that are connected again.
func (n *Node) reconnected(own []registry.Endpoint) {
	n.mu.Lock()
	var over []string
	for about := range n.problems {
		id, is := strings.CutPrefix(about, cutProblem)
		if is && slices.ContainsFunc(own, func(e registry.Endpoint) bool { return e.Network+"/"+e.ID == id }) {
			over = append(over, about)
		}
	}
	n.mu.Unlock()
	for _, about := range over {
		n.problem(about, nil)
	}
}
