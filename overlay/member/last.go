package member

import (
	"fmt"
	"path/filepath"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
)

// Last returns what a member that does not run has in its directory: its id in etcd, and the index of the last entry
// of its log.
func Last(dir string) (id, index uint64, err error) {
	fail := func(err error) (uint64, uint64, error) {
		return 0, 0, fmt.Errorf("read the log of the registry's member: %w", err)
	}
	path := filepath.Join(dir, "member", "wal")
	snapshots, err := wal.ValidSnapshotEntries(zap.NewNop(), path)
	if err != nil {
		return fail(err)
	}
	if len(snapshots) == 0 {
		return fail(fmt.Errorf("%s has no snapshot", path))
	}
	newest := snapshots[len(snapshots)-1]
	w, err := wal.OpenForRead(zap.NewNop(), path, newest)
	if err != nil {
		return fail(err)
	}
	defer w.Close()
	text, _, entries, err := w.ReadAll()
	if err != nil {
		return fail(err)
	}
	var m etcdserverpb.Metadata
	if err := m.Unmarshal(text); err != nil {
		return fail(err)
	}
	index = newest.Index
	if len(entries) > 0 {
		index = entries[len(entries)-1].Index
	}
	return m.NodeID, index, nil
}

// Progress returns the member's id in etcd, and the index of the last entry that it has applied.
func (m *Member) Progress() (id, index uint64) {
	return uint64(m.e.Server.MemberID()), m.e.Server.AppliedIndex()
}
