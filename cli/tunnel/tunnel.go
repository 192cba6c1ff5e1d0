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

func New() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tunnel COMMAND",
		Short: "use several links at once, as one",
		Long: `Joins two hosts by all the links between them: any IP traffic goes over all of
them at once. A file on each host says how; doc/tunnel.md describes it.

With a key in that file all traffic is encrypted and authenticated. A tunnel
without a key is for trusted networks only: whoever sees its packets can read,
forge and end everything.`,
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

// stdinName is what messages call a tunnel file from standard input. A key with
// a relative name is looked for in the working directory then.
const stdinName = "<stdin>"

// readFile reads a tunnel file, "-" for in, and holds it against this machine.
// The error is that it can't be read at all.
func readFile(name string, in io.Reader, own string) (*spec.File, error) {
	from := in
	if name == "-" {
		name = stdinName
	} else {
		// A pipe that nobody writes into is empty: it is not waited for.
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
	m.OwnDevice = own
	file.CheckMachine(m)
	return file, nil
}

// openKey opens a key file without waiting for whoever writes into a pipe.
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
