package keep

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"cleat/cli/hint"
	osprogram "cleat/internal/program"
	"cleat/internal/statedir"
	"cleat/network/attach"
	"cleat/network/keep"

	"github.com/spf13/cobra"
)

// install writes the systemd unit, and starts it now and at each boot.
func install(cmd *cobra.Command, store *attach.Store) error {
	if _, managed := keep.AtBoot(store); !managed {
		return hint.With(errors.New("install the keeper: systemd does not manage this host"),
			"have your init system run `cleat keep` at boot; `cleat keep --print-unit` shows what systemd would run")
	}
	var unit bytes.Buffer
	if err := printUnit(&unit, store); err != nil {
		return err
	}
	file, err := placeUnit(unit.Bytes())
	if err != nil {
		return fmt.Errorf("install the keeper: %w", err)
	}
	for _, args := range [][]string{{"daemon-reload"}, {"enable", "--quiet", keep.UnitName}, {"--no-block", "restart", keep.UnitName}} {
		if err := systemctl(args...); err != nil {
			return err
		}
	}
	_, err = io.WriteString(cmd.OutOrStdout(), "a keeper starts at boot: "+file+"\n")
	return err
}

// placeUnit returns the path of a unit file with this text. If a package or `make install` has put
// one in place, that is it. Otherwise placeUnit writes one, which hides theirs.
func placeUnit(text []byte) (path string, err error) {
	for _, path := range keep.ShippedUnits() {
		shipped, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil && bytes.Equal(shipped, text) {
			return path, statedir.Remove(keep.UnitFile)
		}
		break // systemd uses none of the others
	}
	return keep.UnitFile, statedir.WriteFile(keep.UnitFile, text)
}

// uninstall undoes install. What is attached stays, and so does a unit that install has not written.
func uninstall(cmd *cobra.Command, store *attach.Store) error {
	_, err := os.Lstat(keep.UnitFile)
	if starts, _ := keep.AtBoot(store); errors.Is(err, os.ErrNotExist) && !starts {
		_, err := io.WriteString(cmd.OutOrStdout(), "no keeper is installed\n")
		return err
	}
	if err := systemctl("disable", "--quiet", "--now", keep.UnitName); err != nil {
		return err
	}
	if err := statedir.Remove(keep.UnitFile); err != nil {
		return fmt.Errorf("uninstall the keeper: %w", err)
	}
	return systemctl("daemon-reload")
}

func systemctl(args ...string) error {
	out, err := osprogram.Command("systemctl", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("systemctl %s: %w: %s", args[0], err, bytes.TrimSpace(out))
	}
	return nil
}
