package named

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cleat/netns"
	"cleat/network/attach"
	"cleat/network/firewall"
	"cleat/network/names"

	"golang.org/x/sys/unix"
)

// Keeper keeps the networks of a state directory as long as it runs: it puts them into the
// kernel again after a restart of the machine, owns the table of rules so that nobody else
// changes it, and restarts the name server.
type Keeper struct {
	cfg   Config
	store Store
	start func() error
	log   func(format string, args ...any)
	host  *netns.NS // while Run runs
	open  bool      // others can change the rules, as before Linux 6.9; only tests set it

	changed chan struct{} // receives when containers may have ended

	mu          sync.Mutex // guards owner, usedAt and unusedSince
	owner       *firewall.Owner
	usedAt      time.Time // when Unused last found a container on a network
	unusedSince time.Time // when Unused first found no container on any network; zero: there was one

	reported  []Difference // that can't be repaired, by the last look
	signs     signs        // by the last look for forgotten containers
	serverPID atomic.Int64 // of the name server; 0: none was found

	fast fastKeeper
}

// KeeperConfig configures a Keeper.
type KeeperConfig struct {
	Config
	StartNameServer func() error                     // starts the name server's process; it outlives this one
	Log             func(format string, args ...any) // safe for concurrent use
}

// NewKeeper returns a Keeper, and starts nothing.
func NewKeeper(c KeeperConfig) *Keeper {
	k := &Keeper{cfg: c.Config, store: c.store(), start: c.StartNameServer, log: c.Log, changed: make(chan struct{}, 1)}
	k.fast.k = k
	return k
}

// ContainersChanged makes Run look soon whether containers have ended in which the name server
// serves. It is safe for concurrent use and does not block.
func (k *Keeper) ContainersChanged() {
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

// Attached gives a container what it needs beside a link that was made again in a new namespace: the
// names of its networks, the size of its segments, and the host's way to its published ports. It is
// called in the host's network namespace and is safe for concurrent use.
func (k *Keeper) Attached(ctx context.Context, a *attach.Attachment) {
	s, err := open(k.config())
	if err == nil {
		err = errors.Join(s.refit(a), s.settleResolver(ctx, &Endpoint{Network: a.Spec.Network, Container: a.Container, AttachmentID: a.ID}))
		s.close()
	}
	if err != nil && ctx.Err() == nil {
		k.log("after attaching %s again: %v", a.Container.ShortName(), err)
	}
}

// refit sets the size of segments of a link that was made again from its spec, and the host's way
// through it. The container may have published ports since.
func (s *session) refit(a *attach.Attachment) error {
	n, err := s.store.Network(a.Spec.Network)
	if err != nil {
		return nil // it was removed meanwhile
	}
	e, err := s.store.Endpoint(n.Name, endpointID(a.Container))
	if err != nil {
		return nil // it was disconnected meanwhile
	}
	err = s.fitSegments(n, e)
	if n.Driver == Routed {
		err = errors.Join(err, s.routeLoopback(n.peer(e.Container)))
	}
	return err
}

// Intervals of a keeper.
const (
	idleInterval  = 100 * time.Millisecond // between looks for the first network
	checkInterval = 10 * time.Second       // between looks at devices and rules
	linkChecks    = 60                     // every so many looks include links, which package keep tends as well
	// unusedAfter is how long a keeper that was started on demand stays when the last container has left:
	// another one may come soon, and is connected faster with a keeper.
	unusedAfter = time.Minute
	askedAgain  = time.Second // between looks at whether containers are on networks
	// forgottenAfter is how long engines have, after a container has ended, to disconnect it themselves.
	forgottenAfter = 5 * time.Second
	restartDelay   = 200 * time.Millisecond // before a name server that died right after its start is started again
	startTimeout   = 5 * time.Second        // for a name server to listen
)

// Idle reports whether there is no network to keep.
func (k *Keeper) Idle() bool { return k.store.IsEmpty() }

// Unused reports whether there is no network, or no container has been on any for unusedAfter. Otherwise
// again is when to ask again. It is safe for concurrent use.
func (k *Keeper) Unused() (unused bool, again time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.Idle():
		return true, 0
	case time.Since(k.usedAt) < askedAgain: // a burst of changes asks after each
		return false, askedAgain - time.Since(k.usedAt)
	case k.store.InUse():
		k.usedAt, k.unusedSince = time.Now(), time.Time{}
		return false, unusedAfter
	case k.unusedSince.IsZero():
		k.unusedSince = time.Now()
	}
	left := unusedAfter - time.Since(k.unusedSince)
	return left <= 0, left
}

// Run keeps the networks until ctx ends. It is called in the host's network namespace.
func (k *Keeper) Run(ctx context.Context) {
	host, err := netns.Current()
	if err != nil {
		k.log("networks are not kept: %v", err)
		return
	}
	defer host.Close()
	k.host = host
	table := tableOf(k.store, host)
	table.Unprotected = k.open
	owner, err := table.Own()
	if err != nil {
		k.log("rules are not protected from others: %v", err)
	} else {
		k.setOwner(owner)
		defer func() {
			k.setOwner(nil)
			if err := owner.Close(); err != nil {
				k.log("rules: %v", err)
			}
		}()
	}
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() { k.watchRules(ctx, table, owner) })
	watching.Go(func() { k.keepFast(ctx) })
	for ctx.Err() == nil {
		if k.Idle() {
			k.stopNameServer(ctx)
			sleep(ctx, idleInterval)
			continue
		}
		k.keep(ctx)
	}
	if !k.store.InUse() { // otherwise containers need names while no keeper runs
		k.stopNameServer(context.WithoutCancel(ctx))
	}
}

func (k *Keeper) setOwner(o *firewall.Owner) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.owner = o
}

// Rules returns the rules for commands that this process runs for others, which could not change
// a table that this process owns. It returns nil while Run does not run. It is safe for concurrent
// use.
func (k *Keeper) Rules() Rules {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.owner == nil {
		return nil
	}
	return k.owner
}

// config returns the configuration for the keeper's own work.
func (k *Keeper) config() Config {
	c := k.cfg
	if rules := k.Rules(); rules != nil {
		c.Rules = rules
	}
	return c
}

// watchRules restores the rules whenever somebody has changed them.
func (k *Keeper) watchRules(ctx context.Context, table firewall.Table, owner *firewall.Owner) {
	err := table.Watch(ctx, owner, nil, func() {
		if k.Idle() {
			return
		}
		err := k.host.Do(func() error { return restoreRules(ctx, k.config(), k.log) })
		if err != nil && ctx.Err() == nil {
			k.log("restore rules: %v", err)
		}
	})
	if err != nil && ctx.Err() == nil {
		k.log("rules are only looked at every %s: %v", checkInterval, err)
	}
}

// restoreRules makes the rules in the kernel as the files say, and logs what differed.
func restoreRules(ctx context.Context, cfg Config, log func(format string, args ...any)) error {
	s, err := open(cfg)
	if err != nil {
		return err
	}
	defer s.close()
	unlock, err := s.exclude(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	found, err := s.checkRules()
	if found = repairable(found); err != nil || len(found) == 0 {
		return err
	}
	log("%s, and %d more: restored", found[0], len(found)-1)
	return errors.Join(s.syncRules(ctx), s.acceptForeign(ctx))
}

// keep keeps networks until there is none, or ctx ends.
func (k *Keeper) keep(ctx context.Context) {
	k.repair(ctx, true) // it also makes this process the owner of the rules
	served := make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer close(served)
		_ = k.host.Do(func() error { k.keepNameServer(ctx); return nil })
	}()
	defer func() { cancel(); <-served }()
	check := time.NewTicker(checkInterval)
	defer check.Stop()
	var forgotten <-chan time.Time // nil: nothing has changed since the last look for forgotten endpoints
	for checks := 1; !k.Idle(); checks++ {
		select {
		case <-ctx.Done():
			return
		case <-k.changed:
			if err := releaseDead(ctx, k.store); err != nil && ctx.Err() == nil {
				k.log("name server: %v", err)
			}
			if forgotten == nil { // soon, and once for all changes until then
				forgotten = time.After(forgottenAfter)
			}
		case <-forgotten:
			forgotten = nil
			k.releaseForgotten(ctx)
		case <-check.C:
			k.repair(ctx, checks%linkChecks == 0)
			if checks%linkChecks == 0 {
				k.signs = nil // the next look is a thorough one
			}
		}
	}
}

// releaseForgotten disconnects containers that their engines have not disconnected before they ended.
func (k *Keeper) releaseForgotten(ctx context.Context) {
	err := k.host.Do(func() error {
		released, found, err := releaseForgotten(ctx, k.config(), "", k.signs)
		k.signs = found
		for _, r := range released {
			k.log("%s", r)
		}
		return err
	})
	if err != nil && ctx.Err() == nil {
		k.log("forgotten containers: %v", err)
	}
}

// repair puts right what differs from what is wanted, and logs it. It logs once what it can't
// put right. Without links it does not look into containers.
func (k *Keeper) repair(ctx context.Context, links bool) {
	found, err := k.check(ctx, links)
	for _, d := range found {
		if !slices.Contains(k.reported, d) {
			k.log("network %s", d)
		}
	}
	k.reported = slices.DeleteFunc(slices.Clone(found), func(d Difference) bool { return d.Remedy == "" })
	if err == nil && len(repairable(found)) > 0 {
		_, err = RepairAll(ctx, k.config())
	}
	if err != nil && ctx.Err() == nil {
		k.log("networks: %v", err)
	}
}

func (k *Keeper) check(ctx context.Context, links bool) ([]Difference, error) {
	s, err := open(k.config())
	if err != nil {
		return nil, err
	}
	defer s.close()
	return s.check(ctx, links)
}

// keepNameServer starts the name server whenever it does not run, and sends it all names.
func (k *Keeper) keepNameServer(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		if err := k.serveNames(ctx); err != nil && ctx.Err() == nil {
			k.log("name server: %v", err)
		}
		if time.Since(began) < restartDelay {
			sleep(ctx, restartDelay)
		}
	}
}

// serveNames makes a name server run and know all names, and returns when it ends.
func (k *Keeper) serveNames(ctx context.Context) error {
	c, err := k.nameServer(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	l, err := newLearner(k.config())
	if err != nil {
		return err
	}
	w, err := names.Watch(ctx, k.store.nameServerPath())
	if err != nil {
		return err
	}
	defer w.Close()
	if err := SendNames(ctx, k.config(), c); err != nil {
		return err
	}
	err = w.Run(ctx, func(e names.Learned) {
		if err := l.learn(ctx, e); err != nil {
			k.log("rules about %s: %v", e.Name, err)
		}
	})
	if ctx.Err() == nil {
		k.log("the name server has ended, and is started again")
	}
	return err
}

// nameServer connects to the name server, and starts it if it does not run or is of another
// version of this program.
func (k *Keeper) nameServer(ctx context.Context) (*names.Client, error) {
	c, err := names.Dial(ctx, k.store.nameServerPath())
	if err == nil {
		state, err := c.State(ctx)
		if err == nil && sameProgram(state.PID) {
			k.serverPID.Store(int64(state.PID))
			return c, nil
		}
		c.Close()
		if err == nil {
			stopProcess(state.PID)
		}
	}
	if err := k.start(); err != nil {
		return nil, fmt.Errorf("start name server: %w", err)
	}
	deadline := time.Now().Add(startTimeout)
	for {
		c, err := names.Dial(ctx, k.store.nameServerPath())
		if err == nil {
			if state, err := c.State(ctx); err == nil {
				k.serverPID.Store(int64(state.PID))
			}
			return c, nil
		}
		if time.Now().After(deadline) {
			return nil, err
		}
		if !sleep(ctx, 5*time.Millisecond) {
			return nil, context.Cause(ctx)
		}
	}
}

// sameProgram reports whether a process runs this program's file: not one that an upgrade has
// replaced since.
func sameProgram(pid int) bool {
	ours, err := os.Stat("/proc/self/exe")
	theirs, err2 := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
	if err2 != nil {
		return err == nil && errors.Is(err2, os.ErrPermission) // it is sealed
	}
	return err == nil && os.SameFile(ours, theirs)
}

// stopProcess ends a process and waits a moment for its end. It may be a child of this process, which
// was another program when it started it.
func stopProcess(pid int) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0) != nil {
		return
	}
	const within = 500 // milliseconds
	for {
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, within); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
}

// stopNameServer ends a name server that nobody needs any more.
func stopNameServer(ctx context.Context, store Store) error {
	c, err := names.Dial(ctx, store.nameServerPath())
	if err != nil {
		return err
	}
	defer c.Close()
	state, err := c.State(ctx)
	if err == nil {
		stopProcess(state.PID)
	}
	return err
}

// stopNameServer ends the name server, also if its socket went with the state directory, which somebody may
// have removed.
func (k *Keeper) stopNameServer(ctx context.Context) {
	err := stopNameServer(ctx, k.store)
	if pid := k.serverPID.Swap(0); err != nil && pid != 0 && sameProgram(int(pid)) {
		stopProcess(int(pid))
	}
}

// sleep waits, and reports false if ctx has ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
