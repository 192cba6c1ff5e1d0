package named

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"cleat/internal/program"
	"cleat/internal/statedir"
	"cleat/netns"
)

// A manager is a program that configures all network devices of a host, unless a file says
// otherwise. NetworkManager runs DHCP on Ethernet devices that it does not know, and takes
// addresses from bridges; systemd-networkd does so if a file of the host matches all devices. The
// files are in /run, so they are gone after a restart of the machine, and written again.
type manager struct {
	name   string
	sign   string // a directory that exists once the program has run
	dir    string // where the file goes
	suffix string // of the file
	text   string // with %s for the names of devices
	join   string // between the names
	reload []string
}

func managers() []manager {
	return []manager{
		// Devices of a [device] section with managed=0 are still configured as unknown ones
		// (NetworkManager 1.42), those of unmanaged-devices are not. += keeps those of other files.
		{name: "NetworkManager", sign: "/run/NetworkManager", dir: "/run/NetworkManager/conf.d", suffix: ".conf",
			text: "[keyfile]\nunmanaged-devices+=interface-name:%s\n", join: ";interface-name:", reload: []string{"nmcli", "general", "reload", "conf"}},
		// The first file that matches a device decides, in the order of their names.
		{name: "systemd-networkd", sign: "/run/systemd/netif", dir: "/run/systemd/network", suffix: ".network",
			text: "[Match]\nName=%s\n\n[Link]\nUnmanaged=yes\n", join: " ", reload: []string{"networkctl", "reload"}},
	}
}

// ourDevices are patterns of the names of all devices that networks have on the host: devices of
// networks, ends of links, and the two of the table of rules.
var ourDevices = []string{"cl-*", "clr????????????", "clh????????????", "veth???????????", "cleat-in?", "cl????????in?"}

// file returns the path of the manager's file for a state directory.
func (m manager) file(store Store) string {
	name := "00-cleat"
	if !store.IsDefault() {
		h := fnv.New32a()
		h.Write([]byte(store.Path()))
		name += fmt.Sprintf("-%08x", h.Sum32())
	}
	return filepath.Join(m.dir, name+m.suffix)
}

func (m manager) content() []byte {
	return fmt.Appendf(nil, "# Devices of cleat's networks (cleat net).\n"+m.text, strings.Join(ourDevices, m.join))
}

// runs reports whether the program has run on this host. What is in another network namespace than
// process 1 is none of its business.
func (m manager) runs(host *netns.NS) bool {
	info, err := os.Stat(m.sign)
	if err != nil || !info.IsDir() {
		return false
	}
	first, err := netns.Open("/proc/1/ns/net")
	if err != nil {
		return false
	}
	defer first.Close()
	a, err := first.ID()
	b, err2 := host.ID()
	return err == nil && err2 == nil && a == b
}

// upToDate reports whether the manager's file is there.
func (m manager) upToDate(store Store) bool {
	text, err := os.ReadFile(m.file(store))
	return err == nil && bytes.Equal(text, m.content())
}

// claimDevices makes managers leave the devices of networks alone. What fails becomes a note: the
// keeper restores what a manager changes.
func (s *session) claimDevices(ctx context.Context) {
	for _, m := range managers() {
		if !m.runs(s.host) || m.upToDate(s.store) {
			continue
		}
		err := os.MkdirAll(m.dir, 0o755)
		if err == nil {
			err = statedir.WriteFile(m.file(s.store), m.content())
		}
		if err != nil {
			s.note("%s may change devices of networks: %v", m.name, err)
			continue
		}
		m.read(ctx)
	}
}

// releaseDevices undoes claimDevices.
func (s *session) releaseDevices(ctx context.Context) error {
	var errs []error
	for _, m := range managers() {
		if _, err := os.Lstat(m.file(s.store)); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		errs = append(errs, statedir.Remove(m.file(s.store)))
		m.read(ctx)
	}
	return errors.Join(errs...)
}

// reloadTimeout bounds the wait for a manager, which answers within some 10 ms.
const reloadTimeout = 3 * time.Second

// read makes a manager that runs read its files again. One that does not run reads them when it
// starts.
func (m manager) read(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, reloadTimeout)
	defer cancel()
	_ = program.CommandContext(ctx, m.reload[0], m.reload[1:]...).Run()
}

// checkManagers lists managers that do not know to leave devices of networks alone.
func (s *session) checkManagers() (all []Difference) {
	for _, m := range managers() {
		if m.runs(s.host) && !m.upToDate(s.store) {
			all = append(all, Difference{What: fmt.Sprintf("%s may change devices of networks: %s is missing, or differs", m.name, m.file(s.store))})
		}
	}
	return all
}
