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
		Short: "create a private key and print its public key",
		Long: `Creates a private key in FILE, which must not exist and which only its owner may
read, and prints the public key. In this host's tunnel file, FILE is the private
key; in the other host's, the public key is the peer. Keys have WireGuard's
format.

The private key is never printed.`,
		Example: `  cleat tunnel key office.key
  cleat tunnel key --public office.key`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return hint.With(hint.Usagef("no file given for the private key"), "e.g. `cleat tunnel key office.key`")
			}
			return cobra.ExactArgs(1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			get := createKey
			if public {
				get = func(path string) (secure.PrivateKey, error) { return spec.ReadKey(path, openKey) }
			}
			key, err := get(args[0])
			if err != nil {
				return hint.With(err, spec.KeyHint(args[0], err))
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), key.Public())
			return err
		},
	}
	cmd.Flags().BoolVar(&public, "public", false, "print the public key of an existing FILE")
	return cmd
}

// createKey creates a key in a new file.
func createKey(path string) (secure.PrivateKey, error) {
	key, err := secure.GenerateKey()
	if err != nil {
		return key, err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return key, fmt.Errorf("create key: %w", err)
	}
	_, err = io.WriteString(f, key.Text()+"\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return key, errors.Join(fmt.Errorf("write key: %w", err), os.Remove(path))
	}
	return key, nil
}
