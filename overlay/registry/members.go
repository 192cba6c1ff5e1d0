package registry

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// Members returns the members of the registry.
func (r *Registry) Members(ctx context.Context) (all []Member, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	got, err := r.c.MemberList(ctx)
	if err != nil {
		return nil, &UnreachableError{err}
	}
	for _, m := range got.Members {
		one := Member{ID: m.ID, Started: m.Name != "", Learner: m.IsLearner}
		for _, u := range m.PeerURLs {
			one.Host = strings.TrimSuffix(strings.TrimPrefix(u, "unix://"), PeerSocket(""))
		}
		all = append(all, one)
	}
	return all, nil
}

// Member is a member of the registry.
type Member struct {
	ID      uint64
	Host    string
	Started bool // it has taken part
	Learner bool // it does not vote yet
}

// AddMember adds the member of a host, which does not vote until it is promoted.
func (r *Registry) AddMember(ctx context.Context, host string) error {
	ctx, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	if _, err := r.c.MemberAddAsLearner(ctx, []string{PeerURL(host)}); err != nil {
		return fmt.Errorf("add a member to the registry: %w", err)
	}
	return nil
}

// PeerSocket returns the name of the socket that leads to the member of a host. etcd wants it to look like a port of
// a host.
func PeerSocket(host string) string { return host + ":1" }

// PeerURL returns the address of the member of a host, for the others (package member).
func PeerURL(host string) string { return "unix://" + PeerSocket(host) }

// Promote lets a member vote. It fails until the member has caught up.
func (r *Registry) Promote(ctx context.Context, id uint64) error {
	ctx, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	if _, err := r.c.MemberPromote(ctx, id); err != nil {
		return fmt.Errorf("let a member of the registry vote: %w", err)
	}
	return nil
}

// HasCaughtUp reports whether a member, reached at a gate, has about all that another one has.
func (r *Registry) HasCaughtUp(ctx context.Context, member, other netip.AddrPort) bool {
	ctx, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	has, err := r.c.Status(ctx, Address(member))
	if err != nil {
		return false
	}
	all, err := r.c.Status(ctx, Address(other))
	const behind = 100 // entries; etcd wants 90 % of them
	return err == nil && has.RaftAppliedIndex+behind >= all.RaftAppliedIndex
}

// Address returns what Config.Endpoints has of a member: http, because Dial uses TLS.
func Address(gate netip.AddrPort) string { return "http://" + gate.String() }

// RemoveMember removes a member. One that is removed already is no error.
func (r *Registry) RemoveMember(ctx context.Context, id uint64) error {
	ctx, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	if _, err := r.c.MemberRemove(ctx, id); err != nil && !errors.Is(err, rpctypes.ErrMemberNotFound) {
		return fmt.Errorf("remove a member of the registry: %w", err)
	}
	return nil
}
