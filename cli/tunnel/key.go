package tunnel

import (
	"errors"
	"fmt"
	"io"
	"os"

	"cleat/cli/hint"
	"cleat/tunnel/secure"
	"cleat/tunnel/spec"

	"github.com/spf13/cobra"
)

func newKey() *cobra.Command {
	var public bool
	cmd := &cobra.Command{
		Use:   "key FILE",
		Short: "make a key for this end, and print its public half",
		Long: `Makes a private key in FILE, which must not exist yet and which only its owner
may read, and prints the public key that belongs to it. FILE goes into this
host's tunnel file as the private key, what is printed into the other host's as
its peer. Keys look like those of WireGuard.

The private key itself is never printed.`,
		Example: `  cleat tunnel key office.key
  cleat tunnel key --public office.key`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return hint.With(hint.Usagef("a private key is written into a file, and none is named"), "name one: cleat tunnel key office.key")
			}
			return cobra.ExactArgs(1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := keyOf(args[0], public)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), key.Public())
			return err
		},
	}
	cmd.Flags().BoolVar(&public, "public", false, "print the public key of an existing FILE")
	return cmd
}

// keyOf reads the key in a file, or makes one in a new file.
func keyOf(path string, exists bool) (secure.PrivateKey, error) {
	get := makeKey
	if exists {
		get = func(path string) (secure.PrivateKey, error) { return spec.ReadKey(path, openKey) }
	}
	key, err := get(path)
	return key, hint.With(err, spec.KeyHint(path, err))
}

// makeKey writes a new key into a new file.
func makeKey(path string) (secure.PrivateKey, error) {
	key, err := secure.GenerateKey()
	if err != nil {
		return key, err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return key, fmt.Errorf("make key: %w", err)
	}
	_, err = io.WriteString(f, key.Text()+"\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return key, errors.Join(fmt.Errorf("write key: %w", err), os.Remove(path))
	}
	return key, nil
}
