package registry

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// FullError means that the registry accepts no changes because a member's database has reached its limit.
type FullError struct {
	Used, Limit int64 // bytes, of the member of this host; 0: unknown
}

func (e *FullError) Error() string {
	const mebibyte = 1 << 20
	if e.Limit == 0 {
		return "the registry is full: the database of a member has reached its limit"
	}
	return fmt.Sprintf("the registry is full: the database of this host's member has %d MiB of at most %d MiB", e.Used/mebibyte, e.Limit/mebibyte)
}

// A database is defragmented if more than half of it is unused, and it has this size in bytes at least: below it,
// nothing is gained.
const worthwhile = 64 << 20

// Relieve frees space in the database of one member, which it reaches at an endpoint. leads reports whether that
// member is the leader, which stops answering while it is defragmented: it is only done when there is need. If the
// member was full and has space again, the registry accepts changes again. The error is a *FullError if the member
// stays full.
func (r *Registry) Relieve(ctx context.Context, endpoint string, leads bool) error {
	s, err := r.space(ctx, endpoint)
	if err != nil {
		return err
	}
	alarms, err := r.alarms(ctx)
	if err != nil {
		return err
	}
	mine, full := alarms[s.Header.MemberId]
	size, used := s.DbSize, s.DbSizeInUse
	fragmented := size > worthwhile && size > 2*used && (!leads || 2*size > s.DbSizeQuota)
	if !full && !fragmented {
		return nil
	}
	if full { // of the history, nobody needs anything who follows the registry
		within, cancel := context.WithTimeout(ctx, requestWithin)
		_, err := r.c.Compact(within, s.Header.Revision, clientv3.WithCompactPhysical())
		cancel()
		_ = err // it may be compacted already
	}
	within, cancel := context.WithTimeout(ctx, defragmentWithin)
	_, err = r.c.Defragment(within, endpoint)
	cancel()
	if err != nil {
		return fmt.Errorf("defragment the registry's database: %w", err)
	}
	if !full {
		return nil
	}
	if s, err = r.space(ctx, endpoint); err != nil {
		return err
	}
	if s.DbSize > s.DbSizeQuota/10*9 {
		return &FullError{s.DbSize, s.DbSizeQuota}
	}
	return r.disarm(ctx, mine)
}

// RelieveGone makes the registry accept changes again if only members were full that it does not have any more.
func (r *Registry) RelieveGone(ctx context.Context, members []Member) error {
	alarms, err := r.alarms(ctx)
	if err != nil {
		return err
	}
	for _, m := range members {
		delete(alarms, m.ID)
	}
	for _, a := range alarms {
		if err := r.disarm(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

// defragmentWithin bounds how long a member's database is defragmented: etcd copies about 100 MB a second.
const defragmentWithin = 10 * requestWithin

func (r *Registry) space(ctx context.Context, endpoint string) (*clientv3.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	s, err := r.c.Status(ctx, endpoint)
	if err != nil {
		return nil, &UnreachableError{err}
	}
	return s, nil
}

// alarms returns the alarms of members that are full, by member.
func (r *Registry) alarms(ctx context.Context) (map[uint64]*clientv3.AlarmMember, error) {
	ctx, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	got, err := r.c.AlarmList(ctx)
	if err != nil {
		return nil, &UnreachableError{err}
	}
	all := map[uint64]*clientv3.AlarmMember{}
	for _, a := range got.Alarms {
		if a.Alarm == etcdserverpb.AlarmType_NOSPACE {
			all[a.MemberID] = (*clientv3.AlarmMember)(a)
		}
	}
	return all, nil
}

func (r *Registry) disarm(ctx context.Context, a *clientv3.AlarmMember) error {
	ctx, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	if _, err := r.c.AlarmDisarm(ctx, a); err != nil {
		return &UnreachableError{err}
	}
	return nil
}
