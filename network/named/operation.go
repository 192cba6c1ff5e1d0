package named

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"cleat/internal/statedir"
	"cleat/network/attach"
	"cleat/network/firewall"
	"cleat/network/journal"
)

// operation is a change of one network or one endpoint in progress. Its journal says what the
// operation may have changed. After a kill, the next command brings that in line with the files
// of networks and endpoints: what has a file is completed, what has none is removed (settle).
type operation struct {
	journal *journal.Journal
}

// record is one record of an operation's journal. Later ones replace earlier ones.
type record struct {
	Network  string    `json:"network"`
	Spec     *Network  `json:"spec,omitempty"`     // of a network that is created or removed
	Endpoint *Endpoint `json:"endpoint,omitempty"` // as far as it is known; nil: the operation is about the network

	// The endpoint is as its file says, and all that is left is to forget connections of former owners: of its
	// ports and of those that it has withdrawn (ForgetPorts), and of its addresses as well (Forget).
	Forget      bool   `json:"forget,omitempty"`
	ForgetPorts bool   `json:"forget_ports,omitempty"`
	Withdrawn   []Port `json:"withdrawn,omitempty"`
}

// forgotten returns the change whose connections are to be forgotten.
func (r *record) forgotten(n *Network) firewall.Change {
	before := *r.Endpoint
	before.Wanted.Ports = r.Withdrawn
	c := firewall.Change{Add: firewall.State{Ports: n.portsOf(r.Endpoint)}, Remove: firewall.State{Ports: n.portsOf(&before)}}
	if r.Forget {
		c.Add.Networks = n.endpointRules(r.Endpoint).Networks
	}
	return c
}

// operationName returns the name of the operations on an endpoint.
func operationName(network, id string) string { return network + "~" + id }

func (o *operation) record(r record) error { return o.journal.Append(r) }

// giveUp leaves the operation to the next command. It does nothing if o is nil.
func (o *operation) giveUp() error {
	if o == nil {
		return nil
	}
	return o.journal.Close()
}

// end removes the journal.
func (o *operation) end() error { return o.journal.Remove() }

// begin repairs what others left and begins an operation of this name. It waits while another
// process works on the same.
func (s *session) begin(ctx context.Context, name string, first record) (*operation, error) {
	path := s.store.RunPath("netops", name)
	for {
		o, err := s.tryBegin(ctx, path, first)
		if !errors.Is(err, fs.ErrExist) {
			return o, err
		}
		waited, err := journal.WaitForOwner(ctx, path)
		if err != nil {
			return nil, err
		}
		if !waited {
			return nil, fmt.Errorf("an earlier command died at its work on %s, and what it left can't be removed yet: %s", name, s.lastNote())
		}
	}
}

// busy reports whether an operation on an endpoint is in progress. No other one begins while the
// caller holds the lock on RUN/netops.
func (s Store) busy(network, id string) bool {
	_, err := os.Lstat(s.RunPath("netops", operationName(network, id)))
	return !errors.Is(err, fs.ErrNotExist)
}

// exclude takes the lock without which no operation begins, and waits for the operations on networks that
// have begun. So files of networks stay as they are until the lock is released, and what is read from them
// can be put into the kernel.
func (s *session) exclude(ctx context.Context) (unlock func(), err error) {
	unlock, err = statedir.Lock(ctx, s.store.RunPath("netops"))
	if err != nil {
		return nil, err
	}
	ops, err := os.ReadDir(s.store.RunPath("netops"))
	for _, op := range ops {
		if err == nil && networkName().MatchString(op.Name()) {
			_, err = journal.WaitForOwner(ctx, s.store.RunPath("netops", op.Name()))
		}
	}
	if err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

func (s *session) tryBegin(ctx context.Context, path string, first record) (*operation, error) {
	unlock, err := statedir.Lock(ctx, s.store.RunPath("netops"))
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := s.repair(ctx); err != nil {
		return nil, err
	}
	j, err := journal.Create(path)
	if err != nil {
		return nil, err
	}
	o := &operation{j}
	if err := o.record(first); err != nil {
		return nil, errors.Join(err, o.end())
	}
	return o, nil
}

// repair completes or undoes the operations whose processes died. It is called with the lock on
// RUN/netops held. What can't be done becomes a note, so that one failure does not block all
// commands.
func (s *session) repair(ctx context.Context) error {
	ops, err := os.ReadDir(s.store.RunPath("netops"))
	if err != nil {
		return fmt.Errorf("list operations on networks: %w", err)
	}
	for _, op := range ops {
		j, err := journal.Open(s.store.RunPath("netops", op.Name()))
		if errors.Is(err, journal.ErrOwned) || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := s.repairLinks(ctx); err != nil {
			return errors.Join(err, j.Close())
		}
		if err := s.finish(ctx, j); err != nil {
			s.note("what an interrupted command left of %s can't be settled yet: %v", op.Name(), err)
			if err := j.Close(); err != nil {
				return err
			}
		}
	}
	return nil
}

// repairLinks undoes links that were attached in part.
func (s *session) repairLinks(ctx context.Context) error {
	notes, err := attach.Repair(ctx, s.store.Store)
	for _, note := range notes {
		s.note("%s", note)
	}
	return err
}

// finish settles what an operation was about, and removes its journal.
func (s *session) finish(ctx context.Context, j *journal.Journal) error {
	lines, err := journal.Read(j.Path())
	if err != nil {
		return err
	}
	if len(lines) > 0 { // otherwise nothing was done yet
		var r record
		if err := json.Unmarshal(lines[len(lines)-1], &r); err != nil {
			return fmt.Errorf("read journal %s: %w", j.Path(), err)
		}
		if err := s.settle(ctx, r); err != nil {
			return err
		}
	}
	return j.Remove()
}

// settle brings what an operation was about in line with the files.
func (s *session) settle(ctx context.Context, r record) error {
	if r.Endpoint == nil {
		return s.settleNetwork(ctx, r.Spec)
	}
	if !r.Forget && !r.ForgetPorts {
		return s.settleUnknown(ctx, r.Endpoint)
	}
	n, err := s.store.Network(r.Network)
	if errors.As(err, new(*NoNetworkError)) {
		return nil // what it had is forgotten already
	}
	if err != nil {
		return err
	}
	return s.forget(r.forgotten(n))
}
