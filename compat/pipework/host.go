package pipework

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"cleat/internal/program"
	"cleat/link"
	"cleat/netns"
	"cleat/network/attach"

	"golang.org/x/sys/unix"
)

func hostDevices(here *netns.NS) ([]Device, error) {
	h, err := link.Handle(here)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	all, err := h.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list the host's devices: %w", err)
	}
	var devices []Device
	for _, l := range all {
		a := l.Attrs()
		d := Device{Name: a.Name, Kind: l.Type(), InfiniBand: a.EncapType == "infiniband", Up: a.RawFlags&unix.IFF_UP != 0, Stacked: a.ParentIndex != 0 || a.MasterIndex != 0}
		d.Radio = radioOf("/sys/class/net", a.Name)
		if len(a.HardwareAddr) == len(d.MAC) {
			d.MAC = link.MAC(a.HardwareAddr)
		}
		devices = append(devices, d)
	}
	return devices, nil
}

// radioOf returns the radio of a wireless device, or "". class is /sys/class/net.
func radioOf(class, device string) string {
	radio, err := os.Readlink(filepath.Join(class, device, "phy80211"))
	if err != nil {
		return ""
	}
	return filepath.Base(radio)
}

// lookEvery is the interval at which --wait checks the link; the script uses 1 s.
const lookEvery = 100 * time.Millisecond

// waitUp blocks until a link of that name exists, is up and has a carrier, or ctx ends.
func waitUp(ctx context.Context, here *netns.NS, name string) error {
	h, err := link.Handle(here)
	if err != nil {
		return err
	}
	defer h.Close()
	const upFlags = unix.IFF_UP | unix.IFF_LOWER_UP
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		// Any error may be transient.
		l, err := h.LinkByName(name)
		if err == nil && l.Attrs().RawFlags&upFlags == upFlags {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", name, ctx.Err())
		}
	}
}

// become replaces this process by a program in the container's network namespace. It
// returns only on error.
func become(ctx context.Context, cfg attach.Config, guest string, command []string) error {
	path, err := program.Find(command[0])
	if err != nil {
		return wrong("install iproute2", "run `%s`: %s not found", strings.Join(command, " "), command[0])
	}
	_, ns, err := cfg.Find(ctx, guest)
	if err != nil {
		return err
	}
	defer ns.Close()
	return ns.Do(func() error {
		return &os.PathError{Op: "run", Path: path, Err: unix.Exec(path, command, os.Environ())}
	})
}
