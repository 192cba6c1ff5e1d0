package keep

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cleat/netns"
	"cleat/network/attach"
)

// Config is what to keep. Attach and Log are needed.
type Config struct {
	Attach attach.Config
	Log    func(format string, args ...any) // what was done, and what could not be; called by one goroutine
	// Listen calls tell whenever containers may have begun or ended, until ctx has, as
	// find.Listen does. nil: nobody says so.
	Listen func(ctx context.Context, tell func()) error
	// Answer, if set, runs the command line of a client (Forward) in the host's network
	// namespace and returns its exit code. If handled is false, nothing was changed and
	// the client must run the command itself. Answer is called by several goroutines at
	// once. Work that it leaves to goroutines of background may outlast the call; Run waits
	// for it.
	Answer func(ctx context.Context, r Request, stdout, stderr io.Writer, background *sync.WaitGroup) (code int, handled bool)
	// UntilIdle has Run return when nothing is left to be kept.
	UntilIdle bool
	// Wait has Run wait while another keeper runs, and go on when that has ended.
	Wait bool
	// Ready is called when Run keeps, and before when it waits for another keeper; may
	// be nil.
	Ready func(waiting bool)
}

// Run keeps everything until ctx ends, which is no error. ErrRunning: another does.
func Run(ctx context.Context, c Config) error {
	if c.Ready == nil {
		c.Ready = func(bool) {}
	}
	for {
		unlock, err := lock(c.Attach.Store, ownPID())
		if errors.Is(err, ErrRunning) && c.Wait {
			c.Ready(true)
			if unlock, err = waitLock(ctx, c.Attach.Store); ctx.Err() != nil {
				return nil
			}
		}
		if err != nil {
			return err
		}
		k, err := newKeeper(c)
		if err != nil {
			unlock()
			return err
		}
		err = k.run(ctx)
		unlock()
		missed := k.missed() // something came in just before the lock was let go
		k.close()
		if err != nil || ctx.Err() != nil || !missed {
			return err
		}
	}
}

// Once does what is due now, one after another. What could not be kept is an error,
// and logged.
func Once(ctx context.Context, c Config) error {
	unlock, err := lock(c.Attach.Store, ownPID())
	if err != nil {
		return err
	}
	defer unlock()
	k, err := newKeeper(c)
	if err != nil {
		return err
	}
	defer k.close()
	if err := k.repair(ctx); err != nil {
		return err
	}
	failed := 0
	for _, it := range k.items {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		o := k.tend(ctx, it.work(time.Now()))
		k.take(o)
		if o.err != nil {
			failed++
		}
	}
	switch {
	case failed > 0:
		return fmt.Errorf("%d of %d attachments could not be kept", failed, len(k.items))
	case k.unread != "":
		return errors.New(k.unread)
	}
	return nil
}

// kept is what is wanted and for a keeper. What can't be read is an error beside that.
func kept(store *attach.Store) ([]*attach.Attachment, error) {
	all, err := store.Attachments()
	return slices.DeleteFunc(all, func(a *attach.Attachment) bool { return !a.NeedsKeeper() }), err
}

// keeper is one at work. But for tend its methods are for one goroutine.
type keeper struct {
	Config
	host   *netns.NS // where it was started
	links  *links    // nil: nobody says that one was removed
	woken  *woken
	items  map[string]*item // by the attachment's id
	done   chan outcome     // of what is at work
	busy   int              // how many are
	unread string           // what of what is wanted can't be read

	clients atomic.Int32 // being served
}

func newKeeper(c Config) (*keeper, error) {
	host, err := netns.Current()
	if err != nil {
		return nil, err
	}
	k := &keeper{Config: c, host: host, woken: newWoken(), items: map[string]*item{}, done: make(chan outcome, atOnce)}
	k.load()
	return k, nil
}

func (k *keeper) close() {
	for id := range k.items {
		k.forget(id)
	}
	if k.links != nil {
		k.links.ask.Close()
	}
	k.host.Close()
}

// missed tells whether something is wanted that was not when the keeper looked last.
func (k *keeper) missed() bool {
	all, _ := kept(k.Attach.Store)
	for _, a := range all {
		if it := k.items[a.ID]; it == nil || !same(it.a, a) {
			return true
		}
	}
	return false
}
