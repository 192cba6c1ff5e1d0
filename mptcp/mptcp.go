package mptcp

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"cleat/link"
	"cleat/netns"
)

// Config describes the wanted state.
type Config struct {
	NS      *netns.NS
	Devices []string // names of links, without duplicates
	Backup  []string // those of Devices to use only when the others fail
	Signal  bool     // announce the addresses to the peer
	Subflow bool     // open subflows from them
	// FullMesh opens subflows from each address to each of the peer's. It requires
	// Subflow.
	FullMesh bool
	Family   int    // 4 or 6 to use only that family; 0 for both
	Limits   int    // further subflows of a connection; 0 means as many as the kernel permits
	Dir      string // directory of state files; "" means DefaultDir
	Most     link.MPTCPCapacity
}

// DefaultDir returns the default directory of state files, which CLEAT_RUN_DIR overrides.
func DefaultDir() string {
	if dir := os.Getenv("CLEAT_RUN_DIR"); dir != "" {
		return dir
	}
	return "/run/cleat"
}

// DeviceError means that a device can't be used.
type DeviceError struct {
	Device, Reason, Remedy string
}

func (e *DeviceError) Error() string { return fmt.Sprintf("device %q %s", e.Device, e.Reason) }

// SwitchError means that MPTCP is disabled, or controlled by another program.
type SwitchError struct{ Reason, Remedy string }

func (e *SwitchError) Error() string { return e.Reason }

// ErrTaken means that somebody else made an endpoint of the address, with other flags.
var ErrTaken = errors.New("is already an MPTCP endpoint with other flags")

// CheckSwitches checks by the sysctls of ns that MPTCP is enabled and that the kernel's
// own path manager controls it. It returns nil, a *SwitchError or a *link.Lack.
func CheckSwitches(ns *netns.NS) error {
	return ns.Do(func() error {
		on, err := sysctl("enabled")
		if errors.Is(err, fs.ErrNotExist) {
			return link.Probe("mptcp")
		}
		switch {
		case err != nil:
			return fmt.Errorf("read net.mptcp.enabled: %w", err)
		case on == "0":
			return &SwitchError{"MPTCP is disabled: net.mptcp.enabled is 0", "sysctl net.mptcp.enabled=1"}
		}
		if kind, err := sysctl("pm_type"); err == nil && kind != "0" {
			return &SwitchError{"a program (mptcpd) manages paths: net.mptcp.pm_type is " + kind, "sysctl net.mptcp.pm_type=0"}
		}
		if manager, err := sysctl("path_manager"); err == nil && manager != "kernel" {
			return &SwitchError{"another path manager is active: net.mptcp.path_manager is " + manager, "sysctl net.mptcp.path_manager=kernel"}
		}
		return nil
	})
}

func sysctl(name string) (string, error) {
	b, err := os.ReadFile("/proc/sys/net/mptcp/" + name)
	return strings.TrimSpace(string(b)), err
}
