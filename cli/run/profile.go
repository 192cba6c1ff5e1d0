package run

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"cleat/cli/complete"
	"cleat/cli/hint"
	"cleat/internal/sys"
	"cleat/sandbox"

	"github.com/spf13/cobra"
)

func NewProfile() *cobra.Command {
	var base, listener string
	cmd := &cobra.Command{
		Use:                   "seccomp-profile --listener PATH [--base FILE]",
		DisableFlagsInUseLine: true,
		Short:                 "print a seccomp profile for use with `cleat run --listener`",
		Long: `Prints a seccomp profile, in the form that Docker, Podman and OCI runtimes take,
which has a container's runtime hand its system calls about connections to
"cleat run --tier seccomp --listener PATH". Start that first: where nobody
listens, the runtime does not start the container.

Without --base, all other system calls are allowed. Give your engine's own
profile to keep what that refuses.`,
		Example: `  # a container of Podman's with the profile that it has otherwise
  cleat seccomp-profile --listener /run/user/1000/web.sock \
    --base /usr/share/containers/seccomp.json > web.json
  podman run --security-opt seccomp=web.json …`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return printProfile(cmd.OutOrStdout(), base, listener)
		},
	}
	cmd.Flags().StringVar(&listener, "listener", "", "`PATH` of the Unix socket that \"cleat run --listener\" has")
	cmd.Flags().StringVar(&base, "base", "", "add to the profile in `FILE` (- for standard input)")
	complete.Words(cmd, "listener")
	return cmd
}

func printProfile(out io.Writer, base, listener string) error {
	if listener == "" {
		return hint.With(hint.Usagef("no --listener given"), "give the path that `cleat run --listener` has")
	}
	path, err := filepath.Abs(listener)
	if err != nil {
		return fmt.Errorf("--listener: %w", err)
	}
	var text []byte
	switch base {
	case "":
	case "-":
		text, err = io.ReadAll(os.Stdin)
	default:
		text, err = os.ReadFile(base)
	}
	if err != nil {
		return fmt.Errorf("--base: %w", err)
	}
	profile, err := sandbox.SeccompProfile(text, path)
	switch {
	case errors.Is(err, sys.ErrSeccompArch):
		return err
	case err != nil:
		return hint.Usagef("--base %s: %w", base, err)
	}
	_, err = out.Write(profile)
	return err
}
