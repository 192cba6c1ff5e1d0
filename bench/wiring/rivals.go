package wiring

import (
	"fmt"
	"os"
	"path/filepath"

	"cleat/lab"
	"cleat/link"
)

func writeFile(path, text string, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		return fmt.Errorf("write a configuration: %w", err)
	}
	return nil
}

// nothing is a script for programs that call one whenever something happens.
const nothing = "#!/bin/sh\nexit 0\n"

// rival starts a side's program and waits for the tunnel's device, which gets the
// side's inner address.
func (nw *Network) rival(n *lab.Node, side int, args ...string) (lab.Proc, error) {
	p, err := nw.startProc(n, lab.Command{Args: args})
	if err != nil {
		return nil, err
	}
	return p, nw.awaitDevice(n, side, p)
}

// rootLab is nil in a lab that root made, else what a network lacks whose program
// changes the user it runs as: a user lab has only one.
func rootLab(network string) error {
	if f, inside := lab.Inside(); inside && f != lab.User {
		return nil
	}
	return &link.Lack{What: network, Reason: "its program changes users, for which the lab must be made by root", Remedy: "run the command with sudo, and not with --lab user"}
}
