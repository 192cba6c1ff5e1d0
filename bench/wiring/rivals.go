package wiring

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"cleat/lab"
	"cleat/link"
)

// startRival starts one side's program and waits for the tunnel's device, which then
// gets the side's address.
func (nw *Network) startRival(n *lab.Node, side int, args ...string) (lab.Proc, error) {
	p, err := nw.startProc(n, lab.Command{Args: args})
	if err != nil {
		return nil, err
	}
	return p, nw.awaitDevice(n, side, p)
}

// awaitDevice waits until a program has made the tunnel's device, and gives it the
// side's address.
func (nw *Network) awaitDevice(n *lab.Node, side int, program lab.Proc) error {
	err := nw.pollRunning([]lab.Proc{program}, func() error {
		return onLink(n, tunnelDevice, func(l *link.Link) error {
			if err := l.AddAddr(tunnelAddrs[side]); err != nil && !errors.Is(err, os.ErrExist) {
				return err
			}
			return l.Up()
		})
	})
	if err != nil {
		return fmt.Errorf("wait for %s on %s: %w", tunnelDevice, n, err)
	}
	return nil
}

// writeFile writes a file and makes its directory.
func writeFile(path, text string, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		return fmt.Errorf("write a configuration: %w", err)
	}
	return nil
}

// weights returns the links' rates as whole numbers, of which the least is unit.
func weights(h linkedHosts, unit int) []int {
	links := h.spec.Plan()
	least := links[0].RateBitsPerSec
	for _, l := range links {
		least = min(least, l.RateBitsPerSec)
	}
	out := slices.Repeat([]int{unit}, len(links))
	if least <= 0 {
		return out
	}
	for i, l := range links {
		out[i] = int(float64(unit)*l.RateBitsPerSec/least + 0.5)
	}
	return out
}

// bytesPerSecond formats a link's rate for rivals; 10⁹ bytes/s if it has none.
func bytesPerSecond(bitsPerSec float64) string {
	if bitsPerSec <= 0 {
		bitsPerSec = 8e9
	}
	return strconv.FormatInt(int64(bitsPerSec/8), 10)
}
