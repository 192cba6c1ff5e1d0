package keep

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cleat/internal/statedir"
	"cleat/netns"
	"cleat/network/attach"
	"cleat/network/keep/client"

	"github.com/vishvananda/netlink"
)

// Config configures a keeper. Attach and Log are required.
type Config struct {
	Attach attach.Config
	Log    func(format string, args ...any) // what was done and what failed; not called concurrently
	// Listen, if set, calls notify whenever containers may have started or ended, until ctx
	// ends, as find.Listen does.
	Listen func(ctx context.Context, notify func()) error
	// Answer, if set, runs the command line of a client (client.Forward) in the host's network
	// namespace and returns its exit code. If handled is false, nothing was changed and
	// the client must run the command itself. Answer is called by several goroutines at
	// once. Work that it leaves to goroutines of background may outlast the call; Run waits
	// for it.
	Answer func(ctx context.Context, r client.Request, stdout, stderr io.Writer, background *sync.WaitGroup) (code int, handled bool)
	// Exclusive, if set, reports whether a command line changes what only this process can
	// change. Its client waits for its turn, however many commands run. Others may do the work
	// themselves instead.
	Exclusive func(args []string) bool
	// Pathless, if set, reports whether no argument of a command line is a path, although it may look
	// like one: in "net allow web/api to db", web/api is none.
	Pathless func(args []string) bool
	// Universal, if set, reports whether a command line means the same to all processes of this
	// user, whatever program they run and whatever namespaces they are in.
	Universal func(args []string) bool
	// Contract, if set, reports whether a command line comes from another program, which sends absolute
	// paths only. That program must be in the same namespaces, but may be any.
	Contract func(args []string) bool
	// Unlimited, if set, reports whether a command line is run at once, however many others are.
	Unlimited func(args []string) bool
	// Quiet, if set, reports whether a command line is not logged: it changes nothing, and comes often.
	Quiet func(args []string) bool
	// Networks, if set, keeps named networks beside the attachments.
	Networks Networks
	// UntilIdle makes Run return when nothing is left to keep.
	UntilIdle bool
	// Busy, if set, reports whether this process has something else to do: then Run does not return.
	Busy func() bool
	// Wait makes Run wait for the end of another keeper.
	Wait bool
	// Ready, if set, is called when the keeper has started, and before that with waiting set if Run
	// waits for another keeper.
	Ready func(waiting bool)
}

// Networks keeps named networks.
type Networks interface {
	// Run keeps all networks, also those that are created later, until ctx ends.
	Run(ctx context.Context)
	// Unused reports whether nothing of the networks needs a keeper: there are none, or no container has been
	// on one for a while. Otherwise again is when to ask again. It is safe for concurrent use.
	Unused() (unused bool, again time.Duration)
	// Attached is called when the link of an attachment to a network was made again. It is called
	// in the host's network namespace, by several goroutines at once.
	Attached(ctx context.Context, a *attach.Attachment)
	// ContainersChanged is called when containers may have started or ended. It does not block.
	ContainersChanged()
}

// Run keeps all attachments until ctx ends, which is not an error. It returns ErrRunning if another
// keeper has the state directory.
func Run(ctx context.Context, c Config) error {
	if c.Ready == nil {
		c.Ready = func(bool) {}
	}
	for {
		unlock, err := lock(c.Attach.Store, ownPID())
		if errors.Is(err, ErrRunning) && c.Wait {
			c.Ready(true)
			unlock, err = takeLock(c.Attach.Store, ownPID(), func(f *os.File) error { return statedir.WaitLock(ctx, f) })
			if ctx.Err() != nil {
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
		missed := k.missed() // something was attached just before the lock was released
		k.close()
		if err != nil || ctx.Err() != nil || !missed {
			return err
		}
	}
}

// Once does what is due now, one attachment after the other. What could not be kept is logged, and
// an error.
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
		o := k.tend(ctx, it.task(time.Now()))
		k.finish(o)
		if o.err != nil {
			failed++
		}
	}
	switch {
	case failed > 0:
		return fmt.Errorf("%d of %d attachments could not be kept", failed, len(k.items))
	case k.unreadable != "":
		return errors.New(k.unreadable)
	}
	return nil
}

// keptAttachments returns the attachments that need a keeper. The error is about those that can't be
// read.
func keptAttachments(store *attach.Store) ([]*attach.Attachment, error) {
	all, err := store.Attachments()
	return slices.DeleteFunc(all, func(a *attach.Attachment) bool { return !a.NeedsKeeper() }), err
}

// keeper is a running keeper. Only tend is safe for concurrent use.
type keeper struct {
	Config
	host       *netns.NS // the namespace that it was started in
	events     *eventQueue
	items      map[string]*item // by id of the attachment
	done       chan outcome     // of running tasks
	running    int              // number of running tasks
	unreadable string           // why attachments can't be read; "" if all can

	linksMu sync.Mutex
	links   *netlink.Handle // gives namespaces a number in the host's; nil if links are not listened to

	clients  atomic.Int32  // that are being served
	commands chan struct{} // has an element for each command that runs
}

func newKeeper(c Config) (*keeper, error) {
	host, err := netns.Current()
	if err != nil {
		return nil, err
	}
	k := &keeper{Config: c, host: host, events: newEventQueue(), items: map[string]*item{}, done: make(chan outcome, maxTasks), commands: make(chan struct{}, maxCommands)}
	k.load()
	return k, nil
}

func (k *keeper) close() {
	for id := range k.items {
		k.forget(id)
	}
	if k.links != nil {
		k.links.Close()
	}
	k.host.Close()
}

// missed reports whether there is an attachment that the keeper does not know of.
func (k *keeper) missed() bool {
	all, _ := keptAttachments(k.Attach.Store)
	for _, a := range all {
		if it := k.items[a.ID]; it == nil || !sameAttachment(it.attachment, a) {
			return true
		}
	}
	return false
}
