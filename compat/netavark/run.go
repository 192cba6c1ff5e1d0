package netavark

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"runtime/debug"
	"syscall"

	"cleat/compat/netavark/args"
	"cleat/network/attach"
	"cleat/network/named"
)

// Manager is the attach.Container.Manager of containers that Podman has connected, and the
// named.EngineSpec.Manager of networks that were made for them.
const Manager = "netavark"

// Host is what a call changes.
type Host struct {
	Networks named.Config
	// Serve returns when the names of networks are served. It may be nil.
	Serve func(ctx context.Context) error
	// Explain returns what to do about an error, in words; "" if it does not know. It may be nil.
	Explain func(err error) string
}

// Call is one execution of the program.
type Call struct {
	Args    []string // after the program's name
	Stdin   []byte   // or the content of the file that Args name
	Plugin  bool     // it is called as a plug-in of netavark
	Out     io.Writer
	Errors  io.Writer // what plug-ins print to it; nil: nowhere
	Version string    // of cleat
}

// call is a Call whose command line is valid.
type call struct {
	Call
	Host
	line args.Line
}

// Run executes a call and returns the exit code. If ctx ends before a setup is complete, it is undone.
func Run(ctx context.Context, h Host, c Call) int {
	line, err := args.Parse(c.Args)
	if err != nil {
		fmt.Fprintf(c.errors(), "error: %v\n", err)
		return 2
	}
	k := &call{Call: c, Host: h, line: line}
	if err := k.run(ctx); err != nil {
		return h.Fail(c, err)
	}
	return 0
}

func (c Call) errors() io.Writer {
	if c.Errors == nil {
		return io.Discard
	}
	return c.Errors
}

// Fail prints an error as netavark does, and returns the exit code.
func (h Host) Fail(c Call, err error) int {
	text := messageOf(err)
	if h.Explain != nil && text == err.Error() {
		if more := h.Explain(err); more != "" && !errors.As(err, new(*contractError)) {
			text += "; " + more
		}
	}
	b, _ := json.Marshal(map[string]string{"error": text}) // text can be encoded
	fmt.Fprintf(c.Out, "%s\n", b)
	return 1
}

// compatible is the version of netavark whose contract this package has.
const compatible = "2.1.0"

func (c *call) run(ctx context.Context) error {
	switch {
	case c.line.Help:
		_, err := io.WriteString(c.Out, usage)
		return err
	case c.line.Version:
		_, err := fmt.Fprintf(c.Out, "netavark %s\n", compatible)
		return err
	case c.Plugin:
		return c.beAPlugin(ctx)
	}
	switch c.line.Command {
	case "create":
		return c.create()
	case "setup":
		return c.setup(ctx)
	case "teardown":
		return c.teardown(ctx)
	case "update":
		return c.update(ctx)
	case "version":
		return c.version()
	case "firewalld-reload", "firewall-reload":
		return named.SyncRules(ctx, c.Networks)
	case "dhcp-proxy":
		fmt.Fprintln(c.errors(), "leases are requested by setup and extended by cleat keep: no proxy is needed")
	}
	return nil
}

const usage = `A container network stack: cleat in the place of netavark

Usage: netavark [OPTIONS] COMMAND

Commands:
  create             complete the configuration of a network, from standard input
  setup NETNS        connect a container to networks
  update NETWORK     change the name servers of a network
  teardown NETNS     disconnect a container
  version            print the version
  dhcp-proxy         nothing: setup requests leases itself
  firewalld-reload   restore rules
  firewall-reload    restore rules

Options:
  -f, --file FILE              read FILE instead of standard input
  -c, --config DIR             keep the state of networks of a user below DIR
      --plugin-directory DIR   where plug-ins are
  -a, --aardvark-binary FILE   ignored: cleat serves names
  -r, --rootless BOOL          ignored
      --firewall-driver NAME   ignored
`

// version prints the version. Podman reads it as that of netavark.
func (c *call) version() error {
	return c.print(map[string]string{"version": compatible, "commit": "cleat " + c.Version, "build_time": commitTime(),
		"target": runtime.GOARCH + "-linux", "default_fw_driver": "nftables"})
}

// commitTime returns the time of the commit that the program was built from; "" if it is unknown.
func commitTime() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.time" {
			return s.Value
		}
	}
	return ""
}

// update changes the servers that a network asks for names of others.
func (c *call) update(ctx context.Context) error {
	servers, err := parseServers(c.line.DNSServers)
	if err != nil {
		return err
	}
	store := named.Store{Store: c.Networks.Attach.Store}
	networks, err := store.Networks()
	if err != nil {
		return err
	}
	for _, n := range networks {
		if n.Manager != Manager || n.ManagerName != c.line.Operand {
			continue
		}
		spec := n.NetworkSpec
		spec.DNS = servers
		return named.Change(ctx, c.Networks, spec)
	}
	return nil // no container is on it
}

// print prints a result.
func (c *call) print(v any) error {
	text, err := json.Marshal(v)
	if err == nil {
		_, err = fmt.Fprintf(c.Out, "%s\n", text)
	}
	return err
}

// contractError is an error whose text callers may know.
type contractError struct{ text string }

func (e *contractError) Error() string { return e.text }

func failure(format string, a ...any) error { return &contractError{fmt.Sprintf(format, a...)} }

// loadError is the error for an input that can't be parsed.
func loadError(what string, err error) error {
	return failure("failed to load %s: IO error: %v", what, err)
}

// ioError returns the text of a system error as programs in Rust print it.
func ioError(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		text := errno.Error()
		switch errno {
		case syscall.ENOENT:
			text = "No such file or directory"
		case syscall.EEXIST:
			text = "File exists"
		}
		return fmt.Sprintf("IO error: %s (os error %d)", text, int(errno))
	}
	return "IO error: " + err.Error()
}

// messageOf returns the text of an error.
func messageOf(err error) string {
	var taken *attach.TakenError
	switch {
	case errors.As(err, new(*contractError)):
	case errors.As(err, new(*named.PortTakenError)):
		return err.Error() + ": address already in use" // as Podman says it
	case errors.As(err, &taken) && taken.Resource == "link":
		return fmt.Sprintf("create veth pair: interface %s already exists on container namespace: Netlink error: File exists (os error 17)", taken.Name)
	}
	return err.Error()
}

// ReadInput reads the input of a call: a file, or standard input if the command reads it.
func ReadInput(line args.Line, stdin io.Reader, limit int64) ([]byte, error) {
	what := map[string]string{"create": "network create", "setup": "network options", "teardown": "network options"}[line.Command]
	if what == "" {
		return nil, nil
	}
	in := stdin
	if line.File != "" {
		f, err := os.Open(line.File)
		if err != nil {
			return nil, failure("failed to load %s: %s", what, ioError(err))
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, limit))
	if err != nil && !errors.Is(err, fs.ErrClosed) {
		return nil, failure("failed to load %s: %s", what, ioError(err))
	}
	return text, nil
}
