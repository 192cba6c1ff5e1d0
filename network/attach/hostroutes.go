package attach

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// RestoreHostRoutes makes the host's routes to an attached container again. The kernel removes such a route with the
// address that is the source of its packets, e.g. when somebody deletes the network's device.
func RestoreHostRoutes(store *Store, a *Attachment) error {
	s, err := newSession(store, nil)
	if err != nil {
		return err
	}
	defer s.close()
	all, err := readJournal(store.liveJournal(a.ID))
	if errors.Is(err, fs.ErrNotExist) || err == nil && all.outcome == nil {
		return nil // it is not attached, or a command works on it
	}
	if err != nil {
		return err
	}
	for _, u := range all.undos {
		if u.Route == nil || u.Route.NS == all.Container {
			continue
		}
		host, err := s.namespace(u.Route.NS)
		if err != nil {
			return err
		}
		if host == nil {
			continue
		}
		err = host.RouteAdd(u.Route.Route.netlink())
		if err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("restore the host's route to %s: %w", u.Route.Route.To, err)
		}
	}
	return nil
}
