package named

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"cleat/internal/statedir"
	"cleat/netns"
	"cleat/network/attach"
	"cleat/network/firewall"
)

// Config says where networks are kept, and how containers are found.
type Config struct {
	Attach attach.Config
	Rules  Rules // nil: the table of the state directory in the host's network namespace
	// SyncElsewhere, if set, has the process that owns the table make its rules as the files say.
	// It is called when this process may not.
	SyncElsewhere func(ctx context.Context) error
	// ResolvConf is the path of the host's resolv.conf, whose search domains containers get; "" means
	// /etc/resolv.conf.
	ResolvConf string
	Registrar  Registrar // nil: networks that span hosts can't be made or changed
	Files      *Files    // for a process that runs many commands; nil: files are read each time
	Told       *Told     // for one that calls SetRemotes many times; nil: each call tells everything
}

func (c Config) store() Store { return Store{Store: c.Attach.Store, files: c.Files} }

// session is what a command on networks has open.
type session struct {
	Config
	store Store
	host  *netns.NS
	notes []string
	// answered, if set, is closed when whoever has called for a connection has got the answer.
	answered <-chan struct{}
}

// open opens a session in the host's network namespace, in which the process is.
func open(cfg Config) (*session, error) {
	s := &session{Config: cfg, store: cfg.store()}
	if err := s.store.prepare(); err != nil {
		return nil, err
	}
	var err error
	if s.host, err = netns.Current(); err != nil {
		return nil, err
	}
	if s.Rules == nil {
		s.Rules = tableOf(s.store, s.host)
	}
	return s, nil
}

// openNetwork is open, and reads a network.
func openNetwork(cfg Config, network string) (*session, *Network, error) {
	s, err := open(cfg)
	if err != nil {
		return nil, nil, err
	}
	n, err := s.store.Network(network)
	if err != nil {
		s.close()
		return nil, nil, err
	}
	return s, n, nil
}

func (s *session) close() { s.host.Close() }

// later calls f in the background, with a session of its own, and closes done after it. On error it gives up
// the journal of o, which may be nil, and the next command completes the operation: nobody else gets the error.
func (s *session) later(o *operation, f func(s *session) error) (done <-chan struct{}, err error) {
	host, err := netns.Current() // s is closed before
	if err != nil {
		return nil, errors.Join(err, o.giveUp())
	}
	ended := make(chan struct{})
	cfg := s.Config
	if _, own := cfg.Rules.(firewall.Table); own { // of s
		cfg.Rules = nil
	}
	cfg.Attach.Background.Go(func() {
		defer close(ended)
		defer host.Close()
		err := host.Do(func() error {
			s, err := open(cfg)
			if err != nil {
				return err
			}
			defer s.close()
			return f(s)
		})
		if err != nil {
			_ = o.giveUp()
		}
	})
	return ended, nil
}

func (s *session) note(format string, args ...any) {
	if n := fmt.Sprintf(format, args...); !slices.Contains(s.notes, n) {
		s.notes = append(s.notes, n)
	}
}

func (s *session) lastNote() string {
	if len(s.notes) == 0 {
		return "run `cleat net check --repair`"
	}
	return s.notes[len(s.notes)-1]
}

// checkpoint is where a test may make the command fail, or stop as if it were killed.
func (s *session) checkpoint() error {
	if s.Attach.Checkpoint == nil {
		return nil
	}
	return s.Attach.Checkpoint()
}

// Repair completes or undoes what killed commands left.
func Repair(ctx context.Context, cfg Config) (notes []string, err error) {
	s, err := open(cfg)
	if err != nil {
		return nil, err
	}
	defer s.close()
	unlock, err := statedir.Lock(ctx, s.store.RunPath("netops"))
	if err != nil {
		return nil, err
	}
	defer unlock()
	err = s.repair(ctx)
	return s.notes, err
}
