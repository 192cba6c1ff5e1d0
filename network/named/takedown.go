package named

import (
	"context"
	"errors"
	"fmt"

	"cleat/internal/statedir"
	"cleat/network/attach"
	"cleat/network/firewall"
	"cleat/network/names"
)

// Down counts what TakeDown has taken down.
type Down struct {
	Networks, Attachments int // Attachments includes links to networks
	Notes                 []string
}

// TakeDown removes all networks and attachments from the kernel and from containers, ends the name
// server, and keeps the files of what is wanted, as if the machine had been restarted: the next
// keeper restores it. A keeper that runs would do so at once, so none may run. On error TakeDown goes
// on with the rest; another call completes it. Taking down twice is harmless.
func TakeDown(ctx context.Context, cfg Config) (*Down, error) {
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
	d := &Down{}
	err = s.takeDown(ctx, d)
	d.Notes = s.notes
	return d, err
}

func (s *session) takeDown(ctx context.Context, d *Down) error {
	errs := []error{s.repair(ctx)}
	networks, err := s.store.Networks()
	errs = append(errs, err)
	attachments, err := s.store.Attachments()
	errs = append(errs, err, s.takeDownResolvers(ctx), s.takeDownRules(ctx))
	if err := stopNameServer(ctx, s.store); err != nil && !errors.Is(err, names.ErrNotRunning) {
		errs = append(errs, fmt.Errorf("stop the name server: %w", err))
	}
	for _, a := range attachments {
		notes, err := attach.TakeDown(ctx, s.Attach, a)
		s.addNotes(notes)
		if errs = append(errs, err); err == nil {
			d.Attachments++
		}
	}
	for _, n := range networks {
		notes, err := attach.RemoveHost(ctx, s.Attach, n.Name)
		s.addNotes(notes)
		if errs = append(errs, err); err == nil {
			d.Networks++
		}
	}
	return errors.Join(append(errs, s.releaseDevices(ctx))...)
}

func (s *session) addNotes(notes []string) {
	for _, n := range notes {
		s.note("%s", n)
	}
}

// takeDownResolvers gives containers their old resolv.conf back.
func (s *session) takeDownResolvers(ctx context.Context) error {
	unlock, err := statedir.Lock(ctx, s.store.resolversDir())
	if err != nil {
		return err
	}
	defer unlock()
	var errs []error
	for _, r := range s.store.resolvers() {
		ns := r.open()
		errs = append(errs, s.removeResolver(ctx, endpointID(r.Container), r, ns))
		if ns != nil {
			errs = append(errs, ns.Close())
		}
	}
	return errors.Join(errs...)
}

// takeDownRules removes the table of rules and the exceptions in other programs' chains, and ends
// connections of published ports.
func (s *session) takeDownRules(ctx context.Context) error {
	wanted, err := s.wantedRules()
	if removeErr := s.Rules.Remove(); removeErr != nil {
		err = errors.Join(err, fmt.Errorf("remove rules: %w", removeErr))
	}
	err = errors.Join(err, s.forget(firewall.Change{Remove: wanted})) // what is wanted may be known in part
	unlock, lockErr := s.store.lockForeign(ctx)
	if lockErr != nil {
		return errors.Join(err, lockErr)
	}
	defer unlock()
	return errors.Join(err, tableOf(s.store, s.host).RemoveFromIptables())
}
