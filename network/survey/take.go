package survey

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Config says what to look at. The zero value looks at everything that costs
// little.
type Config struct {
	Names map[uint64]Name // what runs in namespaces, by inode number, from who knows
	OVS   string          // socket of Open vSwitch's database; "": where its own programs look
	Held  bool            // look through all descriptors, even if no link leads to a namespace that isn't found otherwise

	// Visit, if set, is called once for each namespace that was entered, on a thread inside
	// it, with its inode number and its links by index. It may read what a Survey leaves out.
	// It is called concurrently for different namespaces.
	Visit func(id uint64, links []netlink.Link)
}

const procDir = "/proc"

// Take surveys the host that it runs on. What may not be read is no error but
// said in the result; an error means that nothing could be found out, or that ctx
// has ended. It holds a descriptor or two on each namespace meanwhile.
func Take(ctx context.Context, cfg Config) (*Survey, error) {
	f := newFinder(procDir, nameDirs...)
	if err := f.find(ctx); err != nil {
		return nil, err
	}
	t := taking{finder: f, visit: cfg.Visit}
	defer t.close()
	t.open(ctx, f.sorted())
	astray := resolve(t.spaces)
	if astray || cfg.Held {
		if more := f.held(ctx); len(more) > 0 {
			t.open(ctx, more)
			resolve(t.spaces)
		}
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	s := t.result(cfg.Names)
	s.switches(ctx, cmp.Or(cfg.OVS, ovsSocket()))
	return s, nil
}

// taking is a survey being taken.
type taking struct {
	finder *finder
	visit  func(uint64, []netlink.Link) // Config.Visit
	spaces []*space
	closed []unopened
}

// unopened is a namespace that is there but can't be opened.
type unopened struct {
	*place
	why string
}

// open opens and reads the namespaces at places.
func (t *taking) open(ctx context.Context, places []*place) {
	spaces, closed := make([]*space, len(places)), make([]string, len(places))
	each(ctx, len(places), func(i int) {
		s, err := openSpace(places[i])
		if err != nil {
			if !errors.Is(err, errGone) {
				closed[i] = reason(err)
			}
			return
		}
		s.out.Unread = reason(s.read(t.visit))
		spaces[i] = s
	})
	for i, s := range spaces {
		if s != nil {
			t.spaces = append(t.spaces, s)
		} else if closed[i] != "" {
			t.closed = append(t.closed, unopened{places[i], closed[i]})
		}
	}
}

func (t *taking) close() {
	for _, s := range t.spaces {
		s.close()
	}
}

// notPermitted is the reason for which most is unread.
const notPermitted = "only root may look inside"

// reason says why a namespace was not read, "" if it was.
func reason(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return notPermitted
	case errors.Is(err, unix.EMFILE):
		return "too many open files: a larger `ulimit -n` helps"
	}
	return err.Error()
}

// result labels everything and puts it in order.
func (t *taking) result(names map[uint64]Name) *Survey {
	g := labeller{proc: t.finder.proc, host: t.finder.of("1"), here: t.finder.of("thread-self"), names: names}
	out := &Survey{Taken: time.Now().Round(0), Hidden: t.finder.hidden}
	out.Host, _ = os.Hostname()
	boot := bootTime(t.finder.proc)
	add := func(n Namespace, p *place) {
		g.apply(&n, p)
		switch {
		case boot.IsZero():
		case n.Origin == OfHost:
			n.Since = boot
		case len(p.running) > 0:
			_, began := first(p.running)
			n.Since = boot.Add(began)
		}
		out.Namespaces = append(out.Namespaces, n)
	}
	for _, s := range t.spaces {
		add(s.out, s.place)
	}
	for _, p := range t.closed {
		add(Namespace{ID: p.id, Unread: p.why}, p.place)
	}
	qualify(out.Namespaces)
	order(out.Namespaces)
	distinct(out.Namespaces)
	out.name()
	out.Notes = t.notes(out)
	return out
}

// name gives the ends of all relations the labels of their namespaces.
func (s *Survey) name() {
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

// notes says what could not be read, each reason once.
func (t *taking) notes(s *Survey) []string {
	var out, reasons []string
	if n := s.Hidden; n > 0 {
		out = append(out, fmt.Sprintf("Of %s only root may know which network they are in.", plural(n, "process", "processes")))
	}
	by := map[string][]string{}
	for _, n := range s.Namespaces {
		if n.Unread == "" {
			continue
		}
		if by[n.Unread] == nil {
			reasons = append(reasons, n.Unread)
		}
		by[n.Unread] = append(by[n.Unread], n.Label)
	}
	for _, why := range reasons {
		labels, more := by[why], ""
		const most = 5
		if len(labels) > most {
			labels, more = labels[:most], fmt.Sprintf(" and %d more", len(labels)-most)
		}
		out = append(out, fmt.Sprintf("Not read: %s%s (%s).", strings.Join(labels, ", "), more, why))
	}
	return out
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
