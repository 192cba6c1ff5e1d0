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

// Config says what to have the kernel do.
type Config struct {
	NS      *netns.NS
	Devices []string // names of links, each once
	Backup  []string // those of Devices that are used when others fail
	Signal  bool     // tell the other end of the addresses
	Subflow bool     // open subflows from them
	// FullMesh opens subflows from each address to each of the other end's; with Subflow
	// alone.
	FullMesh bool
	Family   int    // 4 or 6: addresses of this one alone; 0: both
	Limits   int    // further subflows of a connection; 0: as many as the kernel allows
	Dir      string // where files about what was done are; "": DefaultDir
	Most     link.MPTCPMost
}

// DefaultDir is where New and Undo keep their files. CLEAT_RUN_DIR names another.
func DefaultDir() string {
	if dir := os.Getenv("CLEAT_RUN_DIR"); dir != "" {
		return dir
	}
	return "/run/cleat"
}

// DeviceError is a device that can't be used.
type DeviceError struct {
	Device, Reason, Remedy string
}

func (e *DeviceError) Error() string { return fmt.Sprintf("device %q %s", e.Device, e.Reason) }

// SwitchError says that MPTCP is switched off, or left to somebody else.
type SwitchError struct{ Reason, Remedy string }

func (e *SwitchError) Error() string { return e.Reason }

// ErrTaken says that an address is an endpoint already that somebody else made, and
// another one than is wanted.
var ErrTaken = errors.New("is an MPTCP endpoint already, with other flags")

// CheckSwitches tells by the sysctls of ns whether its kernel's own path manager has a
// say: nil, a *SwitchError, or a *link.Lack.
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
			return &SwitchError{"MPTCP is switched off: net.mptcp.enabled is 0", "sysctl net.mptcp.enabled=1"}
		}
		if kind, err := sysctl("pm_type"); err == nil && kind != "0" {
			return &SwitchError{"paths are left to a program (mptcpd): net.mptcp.pm_type is " + kind, "sysctl net.mptcp.pm_type=0"}
		}
		if manager, err := sysctl("path_manager"); err == nil && manager != "kernel" {
			return &SwitchError{"paths are left to another path manager: net.mptcp.path_manager is " + manager, "sysctl net.mptcp.path_manager=kernel"}
		}
		return nil
	})
}

func sysctl(name string) (string, error) {
	b, err := os.ReadFile("/proc/sys/net/mptcp/" + name)
	return strings.TrimSpace(string(b)), err
}
