package keep

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"cleat/cli/hint"
	osprogram "cleat/internal/program"
	"cleat/internal/statedir"
	"cleat/network/attach"
	"cleat/network/keep"

	"github.com/spf13/cobra"
)

// unit is a systemd unit to install.
type unit struct {
	name string
	text []byte
	done string // what follows from its installation
}

// units returns the units of the keeper of a state directory: its own and, if it serves Docker by default,
// that of the socket.
func units(store *attach.Store) ([]unit, error) {
	var service, socket bytes.Buffer
	if err := errors.Join(printUnit(&service, store), printSocketUnit(&socket)); err != nil {
		return nil, err
	}
	all := []unit{{keep.UnitName, service.Bytes(), "a keeper starts at boot"}}
	if store.IsDefault() {
		all = append(all, unit{keep.SocketUnitName, socket.Bytes(), "Docker's requests start one"})
	}
	return all, nil
}

// install writes systemd units, and starts them now and at each boot.
func install(cmd *cobra.Command, store *attach.Store) error {
	if _, managed := keep.AtBoot(store); !managed {
		return hint.With(errors.New("install the keeper: systemd does not manage this host"),
			"have your init system run `cleat keep` at boot; `cleat keep --print-unit` shows what systemd would run")
	}
	all, err := units(store)
	if err != nil {
		return err
	}
	var report strings.Builder
	var names []string
	for _, u := range all {
		file, err := placeUnit(u)
		if err != nil {
			return fmt.Errorf("install the keeper: %w", err)
		}
		fmt.Fprintf(&report, "%s: %s\n", u.done, file)
		names = append(names, u.name)
	}
	steps := [][]string{{"daemon-reload"}, append([]string{"enable", "--quiet"}, names...)}
	if slices.Contains(names, keep.SocketUnitName) && systemctl("is-active", "--quiet", keep.SocketUnitName) != nil {
		// systemd starts no socket whose service runs.
		steps = append(steps, []string{"stop", keep.UnitName}, []string{"start", keep.SocketUnitName})
	}
	for _, args := range append(steps, []string{"--no-block", "restart", keep.UnitName}) {
		if err := systemctl(args...); err != nil {
			return err
		}
	}
	_, err = io.WriteString(cmd.OutOrStdout(), report.String())
	return err
}

// placeUnit returns the path of the unit's file. If a package or `make install` has put one with this text
// in place, that is it. Otherwise placeUnit writes one, which hides theirs.
func placeUnit(u unit) (path string, err error) {
	own := keep.UnitDir + u.name
	for _, path := range keep.ShippedUnits(u.name) {
		shipped, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil && bytes.Equal(shipped, u.text) {
			return path, statedir.Remove(own)
		}
		break // systemd uses none of the others
	}
	return own, statedir.WriteFile(own, u.text)
}

// uninstall undoes install. What is attached stays, and so does a unit that install has not written.
func uninstall(cmd *cobra.Command, store *attach.Store) error {
	starts, _ := keep.AtBoot(store)
	var names []string
	installed := starts
	for _, name := range []string{keep.SocketUnitName, keep.UnitName} { // a socket whose service stops would start it again
		own := keep.UnitDir + name
		written := exists(own)
		installed = installed || written
		if written || slices.ContainsFunc(keep.ShippedUnits(name), exists) {
			names = append(names, name)
		}
	}
	if !installed {
		_, err := io.WriteString(cmd.OutOrStdout(), "no keeper is installed\n")
		return err
	}
	if err := systemctl(append([]string{"disable", "--quiet", "--now"}, names...)...); err != nil {
		return err
	}
	for _, name := range names {
		if err := statedir.Remove(keep.UnitDir + name); err != nil {
			return fmt.Errorf("uninstall the keeper: %w", err)
		}
	}
	return systemctl("daemon-reload")
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func systemctl(args ...string) error {
	out, err := osprogram.Command("systemctl", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("systemctl %s: %w: %s", args[0], err, bytes.TrimSpace(out))
	}
	return nil
}
