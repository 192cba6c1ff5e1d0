package member

import (
	"fmt"
	"os"

	"cleat/overlay/registry"

	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
)

// Restore makes the data of a member from a backup of a registry (registry.Backup). The member is the only one of a
// registry of its own: one with members of the registry that was copied has another cluster in etcd. dir must not
// exist; it is removed if Restore fails. id distinguishes the registry from others that were restored.
func Restore(backup, dir, host, id string) error {
	if _, err := os.Lstat(dir); err == nil {
		return fmt.Errorf("restore the registry: %s exists", dir)
	}
	err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: backup, Name: host, OutputDataDir: dir, PeerURLs: []string{registry.PeerURL(host)},
		InitialCluster: host + "=" + registry.PeerURL(host), InitialClusterToken: id,
	})
	if err != nil {
		_ = os.RemoveAll(dir)
		return fmt.Errorf("restore the registry: %w", err)
	}
	return nil
}
