package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"cleat/overlay/registry"

	"golang.org/x/sys/unix"
)

// etcd ends its process when it can't write: its disk is full, or broken. The node then starts itself again, in the
// same process. It takes part in the cluster without a member, and starts the member when that may work.

// Failure is why the process has started itself again.
type Failure struct {
	Why   string // what the member said; "": it did not fail
	Times int    // how often it has failed, one time soon after the other
}

// memberFor is how long a member must run until a failure counts as the first one.
const memberFor = 5 * time.Minute

const (
	firstRetry   = time.Second
	longestRetry = time.Minute
)

// minFree is the space on its disk without which a member is not started: etcd writes some MB when it starts.
const minFree = 16 << 20

// NoSpaceError means that a member of the registry is not started, because its disk is full.
type NoSpaceError struct {
	Dir  string
	Free uint64 // bytes
}

func (e *NoSpaceError) Error() string {
	const mebibyte = 1 << 20
	return fmt.Sprintf("the disk with %s is full: this host's member of the registry is started when %d MiB are free, and %d MiB are",
		e.Dir, minFree/mebibyte, e.Free/mebibyte)
}

// checkSpace returns a *NoSpaceError if the disk of a directory is full.
func checkSpace(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("find the free space of %s: %w", dir, err)
	}
	if free := st.Bavail * uint64(st.Bsize); free < minFree { //nolint:unconvert // signed on other platforms
		return &NoSpaceError{dir, free}
	}
	return nil
}

// resumeMember starts the member that this host has, if it does not run.
func (n *Node) resumeMember(ctx context.Context) error {
	n.mu.Lock()
	runs, wait, hosts := n.member != nil, time.Until(n.retry), len(n.mirror.Hosts)
	self, known := n.mirror.Hosts[n.settings.Host]
	left := n.listed && known && !self.Member
	removed := n.removal.sure || n.listed && !known
	n.mu.Unlock()
	if runs || removed || !n.dir.startsMember(n.settings, hosts) {
		return nil
	}
	if left { // while it was down
		return n.removeMember()
	}
	if wait > 0 {
		return n.memberProblem()
	}
	err := checkSpace(n.cfg.Dir)
	if err == nil {
		var id uint64
		var old *OldDataError
		if id, err = n.checkData(ctx); errors.As(err, &old) {
			return n.beginAnew(ctx, id, old)
		}
	}
	if err == nil {
		err = n.startMember(nil)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err != nil {
		n.retry = time.Now().Add(firstRetry)
		if !errors.As(err, new(*NoSpaceError)) {
			n.retry = time.Now().Add(retryAfter(n.failure.Times))
			n.failure.Times++
		}
		n.failure.Why = err.Error()
		return err
	}
	n.started = time.Now()
	return nil
}

// memberProblem returns why this host's member does not run; nil if it has not failed.
func (n *Node) memberProblem() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.failure.Why == "" {
		return nil
	}
	return fmt.Errorf("this host's member of the registry has failed, and is started again: %s", n.failure.Why)
}

func retryAfter(times int) time.Duration { return min(firstRetry<<min(times, 10), longestRetry) }

// broken is called by the member when it can't go on.
func (n *Node) broken(why string) {
	times := 0
	if n.mu.TryLock() { // etcd may have failed in a call of this node
		if times = n.failure.Times; time.Since(n.started) > memberFor {
			times = 0
		}
	}
	n.cfg.Log("the registry's member on this host has failed: %s", why)
	n.cfg.Restart(Failure{why, times + 1})
	os.Exit(1)
}

// relieve keeps the databases of the registry small, and makes it accept changes again when there is space.
func (n *Node) relieve(ctx context.Context) error {
	n.mu.Lock()
	m, leads, listed := n.member, n.leads(), n.listed
	n.mu.Unlock()
	if m == nil || !m.Votes() || !listed {
		return nil
	}
	err := n.registry.Relieve(ctx, registry.Address(n.self().gate()), leads)
	if err == nil && leads {
		var members []registry.Member
		if members, err = n.registry.Members(ctx); err == nil {
			err = n.registry.RelieveGone(ctx, members)
		}
	}
	return err
}

// checkDisk returns a *NoSpaceError while the disk with this host's files is full.
func (n *Node) checkDisk(context.Context) error {
	var none *NoSpaceError
	err := checkSpace(n.cfg.Dir)
	if errors.As(err, &none) {
		return fmt.Errorf("the disk with %s is nearly full: %d MiB are free", none.Dir, none.Free>>20)
	}
	return err
}
