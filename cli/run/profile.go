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

// NewProfile returns the command seccomp-profile.
func NewProfile() *cobra.Command {
	var base, listener string
	cmd := &cobra.Command{
		Use:                   "seccomp-profile --listener FILE [--base FILE]",
		DisableFlagsInUseLine: true,
		Short:                 "print a seccomp profile for `cleat run --listener`",
		Long: `Prints a seccomp profile for Docker, Podman and OCI runtimes. With it, a
container's runtime passes the container's socket calls to
"cleat run --tier seccomp --listener FILE". Start that first: the runtime does
not start a container if nobody listens.

Without --base, all other system calls are allowed. Use your engine's own
profile as the base to keep its restrictions.`,
		Example: `  # serve the network namespace that the container will join
  cleat run --netns PATH --tier seccomp \
    --listener /run/user/1000/web.sock

  # a container of Podman, with the restrictions of its default profile
  cleat seccomp-profile --listener /run/user/1000/web.sock \
    --base /usr/share/containers/seccomp.json > web.json
  podman run --network ns:PATH --security-opt seccomp=web.json …`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return printProfile(cmd.OutOrStdout(), base, listener)
		},
	}
	cmd.Flags().StringVar(&listener, "listener", "", "`FILE` of the Unix socket, as in \"cleat run --listener\"")
	cmd.Flags().StringVar(&base, "base", "", "extend the profile in `FILE`, or standard input for -")
	complete.Words(cmd, "listener")
	return cmd
}

func printProfile(out io.Writer, base, listener string) error {
	if listener == "" {
		return hint.With(hint.Usagef("no --listener given"), "use the path of `cleat run --listener`")
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
