package tunnel

import (
	"fmt"
	"io"
	"io/fs"
	"os"

	"cleat/cli/hint"
	"cleat/tunnel/spec"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// New returns the command tunnel.
func New() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tunnel COMMAND",
		Short: "join two hosts over several links at once",
		Long: `Joins two hosts over all the links between them: any IP traffic uses all links
at once. Each host has a tunnel file, which doc/tunnel.md describes.

With a key in that file all traffic is encrypted and authenticated. A tunnel
without a key is for trusted networks only: everybody who sees its packets can
read, forge and end everything.`,
		Example: `  cleat tunnel up office.yaml
  cleat tunnel key office.key
  cleat tunnel check office.yaml
  cleat tunnel status --watch
  cleat tunnel path down lte`,
		Args: hint.NoCommand,
		RunE: hint.NoCommand,
	}
	cmd.AddCommand(newUp(), newDown(), newReload(), newList(), newStatus(),
		newMetrics(), newPathCmd(), newCheck(), newKey())
	return cmd
}

// stdinName is the name of standard input in messages. A relative name of a key file in it
// is relative to the working directory.
const stdinName = "<stdin>"

// readFile reads a tunnel file, "-" for in, and checks it, also against this machine.
// ownDevice is the device of the tunnel if it is running. The error is about reading:
// mistakes in the file are among its Findings.
func readFile(name string, in io.Reader, ownDevice string) (*spec.File, error) {
	from := in
	if name == "-" {
		name = stdinName
	} else {
		// With O_NONBLOCK a pipe without a writer is empty, and does not block.
		f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return nil, fmt.Errorf("read tunnel file: %w", err)
		}
		defer f.Close()
		from = f
	}
	file, err := spec.Load(from, name, openKey)
	if err != nil {
		return nil, err
	}
	m, err := thisMachine()
	if err != nil {
		return nil, err
	}
	m.OwnDevice = ownDevice
	file.CheckMachine(m)
	return file, nil
}

// openKey is a spec.Opener. It does not block on a pipe without a writer.
func openKey(path string) (io.ReadCloser, fs.FileMode, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Mode(), nil
}
