package attach

import "cleat/netns"

// session is what a command on a store has open: the host's network namespace, which is the
// one that the process is in, and those of containers.
type session struct {
	store          *Store
	host           *namespace
	opened         []*namespace
	checkpointHook func() error // Config.Checkpoint
}

func newSession(store *Store, checkpointHook func() error) (*session, error) {
	ns, err := netns.Current()
	if err != nil {
		return nil, err
	}
	host, err := newNamespace(ns, "")
	if err != nil {
		return nil, err
	}
	return &session{store: store, host: host, checkpointHook: checkpointHook}, nil
}

func (s *session) close() {
	for _, n := range append(s.opened, s.host) {
		n.close()
	}
}

// namespace returns a namespace that a journal refers to; nil, nil if it is gone.
func (s *session) namespace(ref nsRef) (*namespace, error) {
	for _, n := range append(s.opened, s.host) {
		if n.ref.same(ref) {
			return n, nil
		}
	}
	ns, err := ref.open()
	if ns == nil {
		return nil, err
	}
	return s.open(ns, ref.Path)
}

// open adds a namespace to the session, which closes it.
func (s *session) open(ns *netns.NS, path string) (*namespace, error) {
	n, err := newNamespace(ns, path)
	if err == nil {
		s.opened = append(s.opened, n)
	}
	return n, err
}

// checkpoint is where a test may make the command fail, or stop as if it were killed.
func (s *session) checkpoint() error {
	if s.checkpointHook == nil {
		return nil
	}
	return s.checkpointHook()
}
