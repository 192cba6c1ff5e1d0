package named

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"cleat/internal/atomicfile"
)

// relaxed are settings with which the kernel takes TCP packets for their connection's, whatever their place in it: it does
// not see those that go the fast way. The second one is about packets that abort connections.
var relaxed = []string{"nf_conntrack_tcp_be_liberal", "nf_conntrack_tcp_ignore_invalid_rst"}

func trackingSetting(name string) string { return "/proc/sys/net/netfilter/" + name }

// changedTracking is which settings were off before, in a file: a keeper may be killed.
type changedTracking struct {
	Boot     string   `json:"boot"`
	Settings []string `json:"settings"`
}

func (s Store) trackingFile() string { return s.Path("conntrack.json") }

// relaxTracking switches the settings on, in this network namespace.
func relaxTracking(s Store) error {
	changed, err := readTracking(s)
	if err != nil {
		return err
	}
	var off []string
	for _, name := range relaxed {
		now, err := os.ReadFile(trackingSetting(name))
		if err != nil {
			return fmt.Errorf("read a setting of connection tracking: %w", err)
		}
		if strings.TrimSpace(string(now)) == "0" {
			off = append(off, name)
		}
	}
	if len(off) == 0 {
		return nil
	}
	changed.Boot, changed.Settings = s.BootID(), append(changed.Settings, off...)
	if err := atomicfile.Write(s.trackingFile(), func(w io.Writer) error { return json.NewEncoder(w).Encode(changed) }); err != nil {
		return err
	}
	for _, name := range off {
		if err := os.WriteFile(trackingSetting(name), []byte("1"), 0); err != nil {
			return fmt.Errorf("have connection tracking accept packets of connections that it does not see in full: %w", err)
		}
	}
	return nil
}

// restoreTracking switches off what relaxTracking has switched on.
func restoreTracking(s Store) error {
	changed, err := readTracking(s)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range changed.Settings {
		if err := os.WriteFile(trackingSetting(name), []byte("0"), 0); err != nil {
			errs = append(errs, fmt.Errorf("restore a setting of connection tracking: %w", err))
		}
	}
	if err := os.Remove(s.trackingFile()); !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// readTracking returns what was changed since the machine has started.
func readTracking(s Store) (changed changedTracking, err error) {
	b, err := os.ReadFile(s.trackingFile())
	if errors.Is(err, fs.ErrNotExist) {
		return changed, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &changed)
	}
	if err != nil {
		return changed, fmt.Errorf("read which settings of connection tracking were changed: %w", err)
	}
	if changed.Boot != s.BootID() {
		return changedTracking{}, nil
	}
	return changed, nil
}
