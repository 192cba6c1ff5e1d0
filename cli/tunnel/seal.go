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

// netSysctls is what thisMachine reads of the kernel's settings.
const netSysctls = "/proc/sys/net"

// seal gives up what a tunnel that runs does not need. What can't be given up is said,
// and no reason to stop: packets get through all the same.
func (u *up) seal(t *spec.Tunnel) {
	cfg := endpoint.SealConfig{Read: []string{netSysctls}}
	if u.name != "-" {
		u.path, _ = filepath.Abs(u.name) // a working directory that is gone: ""
		cfg.Reread = []string{u.name}
		if t.Key != nil {
			cfg.Reread = append(cfg.Reread, t.Key.File)
		}
	}
	if t.Metrics.Network == "unix" {
		cfg.Remove = t.Metrics.Address
	}
	// Landlock's rule is for an inode, which stays while the directory is open.
	u.sysctls, _ = os.Open(netSysctls)
	_, _ = time.Now().Zone() // reads /etc/localtime, once
	s, err := endpoint.Seal(cfg)
	if err != nil {
		u.say("the tunnel runs with more rights than it needs: %v", err)
	}
	u.sealed = control.Sealed{
		Capabilities: seal.Names(s.Capabilities), NoNewPrivileges: s.NoNewPrivileges, Dumpable: s.Dumpable,
		Seccomp: s.Seccomp, LandlockABI: s.LandlockABI,
	}
}

// sealedError adds to why a file can't be read again what was given up since it was read
// first.
func sealedError(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return hint.With(err, "a tunnel that runs reads only as its user, and only in the directories of its file and key: "+
			"give the file back its owner and place, or start the tunnel again")
	}
	return err
}
