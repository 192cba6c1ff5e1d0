package survey

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Config says what to read. The zero value reads everything that is cheap.
type Config struct {
	Names             map[uint64]Name // containers in namespaces, by inode number, as their engines name them
	OVSSocket         string          // of its database; "" for the place where its own programs look
	SearchDescriptors bool            // search the descriptors of all processes, even if no link leads to a namespace that isn't found otherwise

	// Visit, if set, is called once for each namespace that was entered, on a thread inside
	// it, with its inode number and its links by index. It may read what a Survey leaves out.
	// It is called concurrently for different namespaces.
	Visit func(id uint64, links []netlink.Link)
}

const procDir = "/proc"

// Take surveys this host. The result says what could not be read; an error means that nothing
// could be read, or that ctx has ended. Meanwhile Take holds up to two descriptors a namespace.
func Take(ctx context.Context, cfg Config) (*Survey, error) {
	f := newFinder(procDir, nameDirs...)
	if err := f.find(ctx); err != nil {
		return nil, err
	}
	t := collector{finder: f, visit: cfg.Visit}
	defer t.close()
	t.open(ctx, f.sorted())
	unresolved := resolve(t.readers)
	if unresolved || cfg.SearchDescriptors {
		if more := f.findHeld(ctx); len(more) > 0 {
			t.open(ctx, more)
			resolve(t.readers)
		}
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	s := t.survey(cfg.Names)
	s.readSwitches(ctx, cmp.Or(cfg.OVSSocket, ovsSocket()))
	return s, nil
}

type collector struct {
	finder  *finder
	visit   func(uint64, []netlink.Link) // Config.Visit
	readers []*reader
}

func (t *collector) open(ctx context.Context, candidates []*candidate) {
	readers := make([]*reader, len(candidates))
	each(ctx, len(candidates), func(i int) {
		r := &reader{candidate: candidates[i], out: Namespace{ID: candidates[i].id}}
		err := r.open()
		if err == nil {
			err = r.read(t.visit)
		}
		if !errors.Is(err, errGone) {
			r.out.UnreadReason = reason(err)
			readers[i] = r
		}
	})
	t.readers = append(t.readers, slices.DeleteFunc(readers, func(r *reader) bool { return r == nil })...)
}

func (t *collector) close() {
	for _, r := range t.readers {
		r.close()
	}
}

// notPermitted is the usual reason.
const notPermitted = "only root may look inside"

// reason returns why a namespace was not read, "" if it was.
func reason(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return notPermitted
	case errors.Is(err, unix.EMFILE):
		return "too many open files: raise `ulimit -n`"
	}
	return err.Error()
}

// survey labels and sorts the namespaces.
func (t *collector) survey(names map[uint64]Name) *Survey {
	g := labeller{proc: t.finder.proc, host: t.finder.namespaceOf("1"), here: t.finder.namespaceOf("thread-self"), names: names}
	out := &Survey{TakenAt: time.Now().Round(0), HiddenProcesses: t.finder.hidden}
	out.Host, _ = os.Hostname()
	boot := bootTime(t.finder.proc)
	for _, r := range t.readers {
		n := r.out
		g.apply(&n, r.candidate)
		switch {
		case boot.IsZero():
		case n.Origin == OriginHost:
			n.Since = boot
		case len(r.candidate.processes) > 0:
			_, oldest := first(r.candidate.processes)
			n.Since = boot.Add(oldest)
		}
		out.Namespaces = append(out.Namespaces, n)
	}
	qualify(out.Namespaces)
	sortNamespaces(out.Namespaces)
	numberDuplicates(out.Namespaces)
	out.nameEnds()
	out.Notes = t.notes(out)
	return out
}

// nameEnds sets the namespaces' labels in all ends.
func (s *Survey) nameEnds() {
	labels := map[uint64]string{}
	for _, n := range s.Namespaces {
		labels[n.ID] = n.Label
	}
	for i := range s.Namespaces {
		for _, l := range s.Namespaces[i].Links {
			for _, e := range []*End{l.Peer, l.Parent, l.Underlay} {
				if e != nil {
					e.Namespace = labels[e.NamespaceID]
				}
			}
		}
	}
}

// notes returns what could not be read, each reason once.
func (t *collector) notes(s *Survey) []string {
	var out, reasons []string
	switch n := s.HiddenProcesses; {
	case n == 1:
		out = append(out, "Only root may read the network namespace of 1 process.")
	case n > 1:
		out = append(out, fmt.Sprintf("Only root may read the network namespace of %d processes.", n))
	}
	labels := map[string][]string{} // by reason
	for _, n := range s.Namespaces {
		if n.UnreadReason == "" {
			continue
		}
		if labels[n.UnreadReason] == nil {
			reasons = append(reasons, n.UnreadReason)
		}
		labels[n.UnreadReason] = append(labels[n.UnreadReason], n.Label)
	}
	for _, r := range reasons {
		const most = 5
		names, more := labels[r], ""
		if len(names) > most {
			names, more = names[:most], fmt.Sprintf(" and %d more", len(names)-most)
		}
		out = append(out, fmt.Sprintf("Not read: %s%s (%s).", strings.Join(names, ", "), more, r))
	}
	return out
}
