package tunnel

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"cleat/cli/hint"
	"cleat/internal/seal"
	"cleat/tunnel/control"
	"cleat/tunnel/endpoint"
	"cleat/tunnel/spec"
)

// netSysctls is the directory of the sysctls that thisMachine reads.
const netSysctls = "/proc/sys/net"

// seal drops the privileges that a running tunnel does not need. If that fails it prints a
// warning, and the tunnel runs.
func (u *up) seal(t *spec.Tunnel) {
	cfg := endpoint.SealConfig{Read: []string{netSysctls}}
	if u.name != "-" {
		u.path, _ = filepath.Abs(u.name) // "" if the working directory is gone
		cfg.Reread = []string{u.name}
		if t.Key != nil {
			cfg.Reread = append(cfg.Reread, t.Key.File)
		}
	}
	if t.Metrics.Network == "unix" {
		cfg.Remove = t.Metrics.Address
	}
	// A Landlock rule refers to an inode, which exists as long as the directory is open.
	u.sysctls, _ = os.Open(netSysctls)
	_, _ = time.Now().Zone() // reads /etc/localtime while that is allowed
	s, err := endpoint.Seal(cfg)
	if err != nil {
		u.printf("the tunnel keeps privileges that it does not need: %v", err)
	}
	u.sealed = control.Sealed{
		Capabilities: seal.Names(s.Capabilities), NoNewPrivileges: s.NoNewPrivileges, Dumpable: s.Dumpable,
		Seccomp: s.Seccomp, LandlockABI: s.LandlockABI,
	}
}

// sealedError adds a hint to an error about reading a file again, for which the tunnel may
// have dropped the privileges.
func sealedError(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return hint.With(err, "a running tunnel reads files only as its user, and only in the directories of its file and key: "+
			"restore the file's owner and place, or restart the tunnel")
	}
	return err
}
