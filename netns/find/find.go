package find

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"cleat/netns"
)

const (
	requestTimeout = 2 * time.Second // a busy Docker answers within 0.1 s
	inAll          = 5               // limit of a whole search, in request timeouts
)

// Container finds the container that a user means by ref (see the package comment). getenv
// returns variables of the caller's environment; nil means this process's. The result has a
// running process, or is the file of a namespace. Errors are *NotFound, *Ambiguous,
// *NotRunning, *Unasked if the only engine in question could not be asked, and otherwise
// the context's.
func Container(ctx context.Context, ref string, getenv func(name string) string) (*Found, error) {
	return thisMachine(getenv).container(ctx, ref)
}

// All lists the running containers of every engine, and the named namespaces that belong
// to none of them, ordered by engine and name. Engines that exist and could not be asked
// are returned separately. The error is the context's.
func All(ctx context.Context) ([]*Found, []*Unasked, error) {
	s, err := thisMachine(nil).survey(ctx)
	if err != nil {
		return nil, nil, err
	}
	var running []*Found
	for _, k := range s.candidates {
		if k.running() {
			running = append(running, &k.Found)
		}
	}
	return running, s.unasked, nil
}

func thisMachine(getenv func(string) string) *machine {
	if getenv == nil {
		getenv = os.Getenv
	}
	return &machine{getenv: getenv, uid: os.Geteuid(), timeout: requestTimeout, netOwners: ownersOfNet}
}

type candidate struct {
	Found
	also     []string // further names
	state    string   // "" if it runs, otherwise the engine's word
	remedy   string   // command that starts it
	sharedID string   // id of the container whose network it shares, if the engine says so
	hostMode bool     // the engine says that it uses the host's network
	chosen   bool     // the user chose its engine
	foreign  bool     // its engine belongs to another user, whose name must precede its own
}

func (k *candidate) running() bool { return k.state == "" }

// How well a container matches a name, worst first.
const (
	noMatch = iota
	prefixMatch
	fullMatch
)

// prefixMin is the shortest prefix of an id that counts without an engine.
const prefixMin = 4

// match returns how well k matches a reference, with or without its Space in front. Whoever
// runs an engine chooses its names and ids, so another user's container matches only with
// the user's name.
func (k *candidate) match(r reference) int {
	best := noMatch
	if rest, cut := strings.CutPrefix(r.name, k.Space+"/"); k.Space != "" && cut {
		best = k.matchName(rest, r)
	}
	switch {
	case k.foreign && (r.space != "" || best == noMatch), r.space != "" && r.space != k.Space:
		return noMatch
	case k.foreign:
		return best
	}
	return max(best, k.matchName(r.name, r))
}

// matchName is match for a name without a Space.
func (k *candidate) matchName(name string, r reference) int {
	switch {
	case name == "":
	case name == k.Name || name == k.ID || slices.Contains(k.also, name):
		return fullMatch
	case strings.HasPrefix(k.ID, name) && (r.engine != "" || len(name) >= prefixMin):
		return prefixMatch
	}
	return noMatch
}

type reference struct {
	engine string // "" means any
	space  string // implied by an alias; "" means any
	name   string // with or without a Space in front
}

var aliases = map[string]reference{
	"ctr": {engine: Containerd}, "nerdctl": {engine: Containerd}, "singularity": {engine: Apptainer},
	"incus": {engine: LXC, space: "incus"}, "lxd": {engine: LXC, space: "lxd"},
}

// engineNames returns all prefixes that may precede a name.
func engineNames() []string {
	return []string{Docker, Podman, Containerd, LXC, Apptainer, Process, Named, Path}
}

func parse(word string) reference {
	before, after, found := strings.Cut(word, ":")
	r := reference{name: after}
	_, noNumber := strconv.ParseUint(word, 10, 31)
	switch alias, isAlias := aliases[before]; {
	case found && isAlias:
		r.engine, r.space = alias.engine, alias.space
	case found && slices.Contains(engineNames(), before):
		r.engine = before
	case strings.ContainsRune(word, '/'):
		return reference{engine: Path, name: word}
	case noNumber == nil:
		return reference{engine: Process, name: word}
	default:
		return reference{name: word}
	}
	return r
}

func (m *machine) container(ctx context.Context, word string) (*Found, error) {
	r := parse(word)
	switch {
	case r.name == "":
		return nil, m.notFound(ctx, word, r)
	case r.engine == Process:
		return m.process(ctx, word, r)
	case r.engine == Named || r.engine == Path:
		return m.namespace(ctx, word, r)
	}
	s, err := m.ask(ctx, m.sources(r.engine, r.name), r.name)
	if err != nil {
		return nil, err
	}
	k, err := s.choose(word, r, m.uid)
	if err != nil {
		return nil, err
	}
	if k == nil && (r.engine == "" || r.engine == Containerd) && m.uid == 0 {
		if k, err = m.recorded(ctx, s, word, r); err != nil {
			return nil, err
		}
	}
	switch {
	case k != nil:
	case r.engine != "" && len(s.unasked) > 0:
		return nil, s.unasked[0]
	case r.engine != "" && len(s.asked) == 0:
		return nil, &Unasked{Engine: r.engine, Err: errAbsent}
	default:
		return nil, m.notFound(ctx, word, r, s.unasked...)
	}
	if !k.running() {
		return nil, &NotRunning{Found: k.Found, State: k.state, Remedy: k.remedy, others: s.runningAs(strings.TrimPrefix(r.name, k.Space+"/"))}
	}
	k.Silent = s.silent()
	if k.path != "" {
		return &k.Found, k.opens()
	}
	return &k.Found, nil
}

// recorded returns the match among containerd's containers without a task, or nil. It
// adds what it finds to the survey. It is called only if nothing else matches, because
// this source may have to wait for an engine that does not respond.
func (m *machine) recorded(ctx context.Context, s *survey, word string, r reference) (*candidate, error) {
	more, err := m.ask(ctx, []asking{{Containerd, records{m}}}, r.name)
	if err != nil {
		return nil, err
	}
	more.candidates = slices.DeleteFunc(more.candidates, func(k *candidate) bool {
		return slices.ContainsFunc(s.candidates, func(o *candidate) bool { return o.Engine == k.Engine && o.Space == k.Space && o.ID == k.ID })
	})
	s.candidates, s.asked, s.unasked = append(s.candidates, more.candidates...), append(s.asked, more.asked...), append(s.unasked, more.unasked...)
	return more.choose(word, r, m.uid)
}

// runningAs returns the references of running containers with a name, whatever their
// engine and Space.
func (s *survey) runningAs(name string) []string {
	var all []string
	for _, k := range s.candidates {
		if k.running() && k.matchName(name, reference{}) == fullMatch {
			all = append(all, k.Ref())
		}
	}
	return all
}

// choose returns the match for a word, or nil if nothing matches.
func (s *survey) choose(word string, r reference, uid int) (*candidate, error) {
	better := func(all []*candidate, good func(*candidate) bool) []*candidate {
		if some := slices.DeleteFunc(slices.Clone(all), func(k *candidate) bool { return !good(k) }); len(some) > 0 {
			return some
		}
		return all
	}
	matching := slices.DeleteFunc(slices.Clone(s.candidates), func(k *candidate) bool { return k.match(r) == noMatch })
	matching = better(matching, func(k *candidate) bool { return k.match(r) == fullMatch })
	matching = better(matching, (*candidate).running)
	if uid != 0 {
		matching = better(matching, func(k *candidate) bool { return k.Owner == uid })
	}
	if len(matching) > 1 && matching[0].Net != 0 { // a container and a name of its namespace
		matching = better(matching, func(k *candidate) bool { return k.Engine != Named || k.Net != matching[0].Net })
	}
	switch len(matching) {
	case 0:
		return nil, nil
	case 1:
		return matching[0], nil
	}
	e := &Ambiguous{Word: word}
	for _, k := range matching {
		e.Candidates = append(e.Candidates, &k.Found)
	}
	return nil, e
}

func (m *machine) process(ctx context.Context, word string, r reference) (*Found, error) {
	pid, err := strconv.Atoi(r.name)
	if err != nil || pid < 1 {
		return nil, m.notFound(ctx, word, r)
	}
	s, err := readStat(m.procDir(), pid)
	if err != nil || s.dead() {
		return nil, m.notFound(ctx, word, r)
	}
	k := candidate{Found: Found{Engine: Process, Name: s.comm, PID: pid, Owner: m.status(pid).uid}}
	if !m.complete(&k) {
		return nil, m.notFound(ctx, word, r)
	}
	return &k.Found, nil
}

func (m *machine) namespace(ctx context.Context, word string, r reference) (*Found, error) {
	k := &candidate{Found: Found{Engine: Path, Name: r.name, path: r.name}}
	if r.engine == Named {
		if strings.ContainsRune(r.name, '/') { // ip-netns(8) creates no such names, and the path would lead elsewhere
			return nil, m.notFound(ctx, word, r)
		}
		k = m.named(r.name)
	}
	err := k.opens()
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, netns.ErrNotFound) {
		e := m.notFound(ctx, word, r)
		if missing := (*NotFound)(nil); errors.As(e, &missing) {
			missing.Cause = err
		}
		return nil, e
	}
	if err != nil {
		return nil, err
	}
	k.Host = k.Net != 0 && k.Net == m.hostNet()
	return &k.Found, nil
}

// opens checks that the file of a namespace can be opened, and records its inode.
func (k *candidate) opens() error {
	ns, err := k.NS()
	if err != nil {
		return err
	}
	defer ns.Close()
	k.Net, err = ns.ID()
	return err
}

// notTheirs is the state of a container of an ordinary user's engine whose first process
// is in a network namespace that the user does not control.
const notTheirs = "its engine names a process in another user's network"

// complete fills in what /proc has about a container's first process. It returns false if
// the process has ended, or if the engine's user has no control over its network.
func (m *machine) complete(k *candidate) bool {
	s, err := readStat(m.procDir(), k.PID)
	if err != nil || s.dead() {
		return false
	}
	k.proc, k.Start = m.procDir(), s.start
	k.Net = m.netOf(strconv.Itoa(k.PID))
	k.Host = k.hostMode
	if k.Net != 0 {
		k.Host = k.Net == m.hostNet()
	}
	if k.Owner == 0 || k.Owner == m.uid || k.Engine == Process || k.Host {
		return true
	}
	owners, err := m.netOwners(fmt.Sprintf("%s/%d/ns/net", m.procDir(), k.PID))
	if err != nil || !slices.Contains(owners, k.Owner) {
		k.PID, k.state = 0, notTheirs
		return false
	}
	return true
}

// notFound returns an error that explains what exists instead of word; unasked are
// engines that could not be asked before. It may return the context's error.
func (m *machine) notFound(ctx context.Context, word string, r reference, unasked ...*Unasked) error {
	s, err := m.survey(ctx)
	if err != nil {
		return err
	}
	e := &NotFound{Word: word, engine: r.engine, name: r.name, Unasked: s.unasked}
	for _, u := range unasked {
		if !slices.ContainsFunc(e.Unasked, func(o *Unasked) bool { return o.Engine == u.Engine }) {
			e.Unasked = append(e.Unasked, u)
		}
	}
	for _, k := range s.candidates {
		if r.engine == "" || r.engine == k.Engine || r.engine == Process || r.engine == Path {
			e.known = append(e.known, &k.Found)
		}
	}
	return e
}
