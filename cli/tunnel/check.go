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
		Short: "check tunnel files for mistakes",
		Long: `Reads tunnel files, - for standard input, and prints all mistakes in them, each
with its line, its column and the allowed values. It starts and changes nothing.

What this machine lacks at present, such as a device that is not plugged in, is
a warning: the tunnel waits for it. With warnings only the exit code is 0, with
errors it is 2.`,
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

func completeFiles(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
}

// check checks files and prints the findings to out. If a file can't be read, it prints
// the reason to errs and continues with the next.
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

// fileText returns the findings about a file, and a summary of the file if it has no
// errors.
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

// mistakes returns a usage error that counts the errors among findings, which the caller
// has printed. It returns nil if there are none.
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

// thisMachine returns the devices and the forwarding of this network namespace.
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
			continue // the device is gone
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

// isOn reports whether a sysctl is on. It returns true for a sysctl that can't be read, so
// that no warning follows from that.
func isOn(path string) bool {
	text, err := os.ReadFile(path)
	return err != nil || !bytes.Equal(bytes.TrimSpace(text), []byte("0"))
}
