package overlay

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"cleat/overlay/gate"
	"cleat/overlay/registry"
)

// A host whose clock is wrong takes part: leases, timeouts and what expires in the registry go by clocks that nobody
// sets. Certificates, tokens, and when keys of WireGuard are replaced go by the time of day, and so does a host that was
// restarted while it was cut off (hold.go). So hosts compare their clocks and say how they differ.

const (
	clockEvery = 30 * time.Second
	renewEvery = time.Minute
	// clockDiffers is the least difference that is said: more than a request takes, and than clocks with NTP have.
	clockDiffers = 5 * time.Second
	clockAsks    = 3 // hosts at a time
)

// ClocksError means that this host and the one that has signed a certificate differ in what the time is.
type ClocksError struct {
	Host        string
	Certificate *x509.Certificate
	Now         time.Time
}

func (e *ClocksError) Error() string {
	const minute = "2006-01-02 15:04"
	return fmt.Sprintf("the clocks of this host and of the one that has signed its certificate differ: the certificate of %s is valid from %s to %s UTC, and this host's clock says %s",
		e.Host, e.Certificate.NotBefore.UTC().Format(minute), e.Certificate.NotAfter.UTC().Format(minute), e.Now.UTC().Format(minute))
}

// Hint returns what to type next.
func (e *ClocksError) Hint() string { return "`timedatectl` shows the clock of a host" }

// ClockError is how this host's clock differs from those of others.
type ClockError struct {
	Ahead time.Duration // of the others
	Of    []string      // hosts, that agree with each other
}

func (e *ClockError) Error() string {
	word := "ahead of"
	if e.Ahead < 0 {
		word = "behind"
	}
	of := "that of host " + e.Of[0]
	if len(e.Of) > 1 {
		of = "those of hosts " + strings.Join(e.Of, ", ")
	}
	return fmt.Sprintf("this host's clock is %s %s %s: timedatectl shows it", e.Ahead.Abs().Round(time.Second), word, of)
}

// offset is how far this host's clock is ahead of that of another one.
type offset struct {
	host  string
	ahead time.Duration
}

// compareClocks returns a *ClockError if this host's clock differs from those of most other hosts that it asks.
func (n *Node) compareClocks(ctx context.Context) error {
	n.mu.Lock()
	var others []registry.Host
	for name, h := range n.mirror.Hosts {
		if _, lives := n.mirror.alive[name]; lives && name != n.settings.Host {
			others = append(others, h)
		}
	}
	n.mu.Unlock()
	rand.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	var mu sync.Mutex
	var all []offset
	var asking sync.WaitGroup
	for _, h := range others[:min(len(others), clockAsks)] {
		asking.Go(func() {
			began, at := time.Now(), n.ID().Now()
			answer, err := n.askHost(ctx, h, hostRequest{Clock: true})
			if err != nil || answer.Clock.IsZero() {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, offset{h.Name, at.Add(time.Since(began) / 2).Sub(answer.Clock)})
		})
	}
	asking.Wait()
	return judge(all)
}

// judge returns a *ClockError if most other clocks agree with each other, and not with this one.
func judge(all []offset) error {
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b offset) int { return cmp.Compare(a.ahead, b.ahead) })
	median := all[len(all)/2].ahead
	if median.Abs() < clockDiffers {
		return nil
	}
	e := &ClockError{Ahead: median}
	for _, o := range all {
		if (o.ahead - median).Abs() < clockDiffers {
			e.Of = append(e.Of, o.host)
		}
	}
	slices.Sort(e.Of)
	if 2*len(e.Of) <= len(all) {
		return nil // the others don't agree either, and say so
	}
	return e
}

// withRemedy adds to an error what the user can do, for the status.
func withRemedy(err error) string {
	if errors.As(err, new(*gate.ExpiredError)) {
		return err.Error() + ". Set the clock that is wrong (timedatectl). A host whose certificate has expired joins again: " +
			"cleat-node leave --force, there; cleat-node remove HOST and cleat-node token, on another one; cleat-node up --token TOKEN"
	}
	return err.Error()
}
