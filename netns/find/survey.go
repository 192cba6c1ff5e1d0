package find

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// source is a source of containers: an engine, or one of several sockets or directories
// of the same engine.
type source interface {
	// search returns what may match word, or everything if word is "". It may return more
	// than asked for if that is faster. errAbsent means that the engine is not here.
	// Results count even if there is an error.
	search(ctx context.Context, word string) ([]*candidate, error)
}

// errAbsent means that an engine is not installed here or has never run.
var errAbsent = errors.New("not running here")

// asking is a source with the name of its engine.
type asking struct {
	engine string
	source
}

// failing is a source that always fails.
type failing struct{ err error }

func (f failing) search(context.Context, string) ([]*candidate, error) { return nil, f.err }

// sources returns all sources of an engine, or of every engine, that may know a name; ""
// means everything.
func (m *machine) sources(engine, name string) []asking {
	ms := newMonitors(m)
	all := scope{m: m}.engines(engine, ms)
	if engine == "" {
		all = append(all, asking{Named, named{m}})
	}
	for _, uid := range m.others(name, ms) {
		engines := scope{m, uid}.engines(engine, ms)
		all = append(all, asking{"engines of " + m.userName(uid), ofUser{m.userName(uid), engines}})
	}
	return all
}

type survey struct {
	candidates []*candidate
	asked      []string
	unasked    []*Unasked
}

// survey asks all sources for everything. It omits named namespaces that belong to a
// container.
func (m *machine) survey(ctx context.Context) (*survey, error) {
	s, err := m.ask(ctx, m.sources("", ""), "")
	if err != nil {
		return nil, err
	}
	taken := map[uint64]bool{}
	for _, k := range s.candidates {
		if k.Engine != Named && k.running() {
			taken[k.Net] = k.Net != 0
		}
	}
	s.candidates = slices.DeleteFunc(s.candidates, func(k *candidate) bool { return k.Engine == Named && taken[k.Net] })
	return s, nil
}

// ask sends the same query to all sources at once. It returns only ctx's error.
func (m *machine) ask(ctx context.Context, sources []asking, word string) (*survey, error) {
	type answer struct {
		of    int
		known []*candidate
		err   error
	}
	patience := inAll * m.timeout
	within, cancel := context.WithTimeoutCause(ctx, patience, silent(patience))
	defer cancel()
	// A source that hangs in a dead file system is abandoned, and can still answer.
	answers := make(chan answer, len(sources))
	for i, s := range sources {
		go func() {
			found, err := s.search(within, word)
			answers <- answer{i, found, err}
		}()
	}
	got := make([]answer, len(sources))
	for i := range got {
		got[i].err = silent(patience)
	}
	for range sources {
		select {
		case a := <-answers:
			got[a.of] = a
			continue
		case <-within.Done():
		}
		break
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	s := &survey{}
	for i, a := range got {
		s.add(sources[i].engine, a.known, a.err)
	}
	s.candidates = slices.DeleteFunc(s.candidates, func(k *candidate) bool { return max(len(k.ID), len(k.Name), len(k.Space)) > nameMax })
	for _, k := range s.candidates {
		k.foreign = k.Owner != 0 && k.Owner != m.uid && !k.chosen
	}
	s.tidy()
	return s, nil
}

// nameMax is the longest name or id in bytes. No engine makes longer ones, but a hostile
// one could.
const nameMax = 1024

type silent time.Duration

func (e silent) Error() string { return fmt.Sprintf("no answer within %s", time.Duration(e)) }

// silent returns the engines that did not answer.
func (s *survey) silent() []string {
	var all []string
	for _, u := range s.unasked {
		if errors.As(u.Err, new(silent)) {
			all = append(all, u.Engine)
		}
	}
	return all
}

func (s *survey) add(engine string, found []*candidate, err error) {
	s.candidates = append(s.candidates, found...)
	switch {
	case errors.Is(err, errAbsent):
	case err != nil:
		s.unasked = append(s.unasked, &Unasked{Engine: engine, Err: err})
	case !slices.Contains(s.asked, engine):
		s.asked = append(s.asked, engine)
	}
}

// dockersSpace is dockerd's namespace in containerd.
const dockersSpace = "moby"

// tidy removes duplicates (dockerd's containers are also containerd's, without a name
// there), finds out who shares whose network, and sorts.
func (s *survey) tidy() {
	type named struct {
		owner int
		id    string
	}
	ids := map[named]bool{}
	for _, k := range s.candidates {
		ids[named{k.Owner, k.ID}] = ids[named{k.Owner, k.ID}] || k.Engine != Containerd
	}
	s.candidates = slices.DeleteFunc(s.candidates, func(k *candidate) bool {
		return k.Engine == Containerd && (ids[named{k.Owner, k.ID}] || k.Space == dockersSpace && slices.Contains(s.asked, Docker))
	})
	for _, k := range s.candidates {
		if k.running() && !k.Host {
			k.SharesWith = s.sharing(k)
		}
	}
	slices.SortStableFunc(s.candidates, func(a, b *candidate) int {
		return cmp.Or(slices.Index(engineNames(), a.Engine)-slices.Index(engineNames(), b.Engine),
			cmp.Compare(a.Space, b.Space), cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
}

// sharing returns the references of others in k's network namespace.
func (s *survey) sharing(k *candidate) []string {
	var others []string
	for _, o := range s.candidates {
		same := k.Net != 0 && o.Net == k.Net || k.sharedID != "" && o.ID == k.sharedID
		if o != k && o.running() && same {
			others = append(others, o.Ref())
		}
	}
	if len(others) == 0 && k.sharedID != "" { // its engine was not asked for everything
		others = append(others, k.Engine+":"+k.sharedID[:min(shortID, len(k.sharedID))])
	}
	slices.Sort(others)
	return others
}

// vouched reports whether a process is the first of the container with this id. An engine
// may name a process of another machine or PID namespace, or one that ended long ago.
func (m *machine) vouched(pid int, id string) bool {
	if pid <= 0 || id == "" {
		return false
	}
	if inGroup(m.procFile(pid, "cgroup"), id) {
		return true
	}
	s, err := readStat(m.procDir(), pid)
	return err == nil && slices.Contains(m.commandLine(s.parent), id)
}
