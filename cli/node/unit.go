package node

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	programs "cleat/internal/program"
	"cleat/network/attach"
	"cleat/network/keep"
)

// unitName is the name of the systemd unit of this program.
const unitName = "cleat-node.service"

// hasUnit reports whether systemd manages this host, and has a unit that runs this program, self, with the usual state
// directory.
func hasUnit(store *attach.Store, self string) bool {
	if !store.IsDefault() || !keep.SystemdSees(store.Path(), self) {
		return false
	}
	for _, path := range append([]string{keep.UnitDir + unitName}, keep.ShippedUnits(unitName)...) {
		if text, err := os.ReadFile(path); err == nil {
			return strings.Contains(string(text), "ExecStart="+self+" ")
		}
	}
	return false
}

// systemctlWithin bounds the wait for systemd.
const systemctlWithin = 10 * time.Second

func systemctl(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, systemctlWithin)
	defer cancel()
	if out, err := programs.CommandContext(ctx, "systemctl", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// startUnit starts the unit. ended receives when it has ended again, until ctx ends.
func startUnit(ctx context.Context) (ended <-chan error, err error) {
	if err := systemctl(ctx, "start", unitName); err != nil {
		return nil, err
	}
	const every = 500 * time.Millisecond
	end := make(chan error, 1)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(every):
			}
			if err := systemctl(ctx, "is-failed", "--quiet", unitName); err == nil {
				end <- fmt.Errorf("%s has failed", unitName)
				return
			}
		}
	}()
	return end, nil
}
