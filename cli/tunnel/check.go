package tunnel

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"cleat/cli/exit"
	"cleat/cli/hint"
	"cleat/cli/term"
	"cleat/tunnel/spec"

	"github.com/spf13/cobra"
)

func newCheck() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check FILE…",
		Short: "find the mistakes in tunnel files before anything starts",
		Long: `Reads tunnel files, - for standard input, and prints all mistakes in them, with
line and column and what is allowed there. Nothing is started or changed.

What this machine lacks at the moment, such as a device that is not plugged in,
is a warning: the tunnel waits for it. With warnings alone the exit code is 0,
with errors it is 2.`,
		Example: `  cleat tunnel check office.yaml
  cleat tunnel check --json office.yaml | jq -r '.[].message'`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: completeFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			return check(cmd.Context(), args, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr(), asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the findings as a JSON array")
	return cmd
}

// completeFiles offers YAML files.
func completeFiles(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
}

// check reads all files and prints what there is to say about each: out
// gets the findings, errs why a file can't be read, which does not keep the
// others from being checked.
func check(ctx context.Context, names []string, in io.Reader, out, errs io.Writer, asJSON bool) error {
	var found []spec.Finding
	var text strings.Builder
	var unreadable error
	for _, name := range names {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		file, err := readFile(name, in, "")
		if err != nil {
			hint.Print(errs, err)
			unreadable = exit.Status(exit.Failed)
			continue
		}
		found = append(found, file.Findings...)
		text.WriteString(fileText(file))
	}
	var err error
	if asJSON {
		err = term.WriteJSON(out, term.OrEmpty(found))
	} else {
		_, err = io.WriteString(out, text.String())
	}
	return cmp.Or(err, mistakes(found), unreadable)
}

// fileText is what a person reads about a file: its findings, and what it
// describes if it is right.
func fileText(file *spec.File) string {
	var b strings.Builder
	for _, f := range file.Findings {
		fmt.Fprintln(&b, f)
	}
	t := file.Tunnel
	if t == nil {
		return b.String()
	}
	var paths []string
	for _, p := range t.Paths {
		paths = append(paths, p.Name)
	}
	secret := "not encrypted"
	if t.Key != nil {
		secret = "encrypted"
	}
	fmt.Fprintf(&b, "%s: no mistakes: tunnel %s, %s, over %s\n", file.Name, t.Name, secret, strings.Join(paths, ", "))
	return b.String()
}

// mistakes is the error that tunnel files have errors, nil if they have
// none. What they are has been printed.
func mistakes(found []spec.Finding) error {
	var in []string
	errs := 0
	for _, f := range found {
		if f.Severity == spec.Error {
			errs++
			if !slices.Contains(in, f.File) {
				in = append(in, f.File)
			}
		}
	}
	if errs == 0 {
		return nil
	}
	return hint.Usagef("%s in %s", term.Count(errs, "mistake"), strings.Join(in, ", "))
}

// thisMachine looks at the devices of this network namespace.
func thisMachine() (spec.Machine, error) {
	m := spec.Machine{ForwardsIPv4: isOn("/proc/sys/net/ipv4/ip_forward"), ForwardsIPv6: isOn("/proc/sys/net/ipv6/conf/all/forwarding")}
	links, err := net.Interfaces()
	if err != nil {
		return m, fmt.Errorf("list devices: %w", err)
	}
	for _, l := range links {
		d := spec.Device{Name: l.Name, MTUBytes: l.MTU}
		addresses, err := l.Addrs()
		if err != nil {
			continue // gone since
		}
		for _, a := range addresses {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				d.Addresses = append(d.Addresses, p.Addr())
			}
		}
		m.Devices = append(m.Devices, d)
	}
	return m, nil
}

// isOn tells whether a sysctl is on. One that can't be read is no reason to
// advise anything.
func isOn(path string) bool {
	text, err := os.ReadFile(path)
	return err != nil || !bytes.Equal(bytes.TrimSpace(text), []byte("0"))
}
