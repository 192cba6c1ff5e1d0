// Command cleat-cni connects containers to networks of cleat for engines, by the contract that its name
// stands for: it is a CNI plug-in, netavark if it is called so, and a plug-in of netavark by any other name.
// It is small, so that it starts fast: it has a running keeper do the work, and starts `cleat` if there is
// none. `cleat cleat-cni --help` and `cleat netavark --help` say more.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"cleat/compat/netavark/args"
	"cleat/internal/program"
	"cleat/internal/statedir"
	"cleat/network/keep/client"

	"golang.org/x/sys/unix"
)

// cni is the name of the CNI plug-in in requests, and argv[0] of cleat.
const cni = "cleat-cni"

// contract is what an engine expects of the program that it starts.
type contract struct {
	name  string   // in requests, and argv[0] of cleat
	words []string // arguments, for cleat as well
	state string   // the state directory; "": the default
	fail  func(stdin []byte, err error, details string) int
}

// errInput means that the configuration can't be read from the standard input.
var errInput = errors.New("read the configuration")

// usage is printed for people, who give arguments or type no input. Runtimes do neither.
const usage = `cleat-cni connects containers to networks of "cleat net". Container runtimes
start it (CNI 0.3.0 to 1.1.0), with the variables CNI_* and a configuration on
its standard input.

  cleat net cni-conf NETWORK      prints a configuration for /etc/cni/net.d
  cleat cleat-cni --help          says more
`

const installHint = "install cleat in /usr/bin or /usr/local/bin"

func main() { os.Exit(run(os.Args)) }

func run(argv []string) int {
	if filepath.Base(argv[0]) == cni && os.Getenv("CNI_COMMAND") == "" {
		if len(argv) > 1 {
			fmt.Print(usage)
			return 0
		}
		fmt.Fprint(os.Stderr, usage)
		return 2
	}
	c, read, err := contractOf(argv)
	var stdin []byte
	if err == nil {
		stdin, err = read()
	}
	if err != nil && c.name != cni { // cleat explains it
		c.words = argv[1:]
		return c.fail(nil, c.execute(nil), installHint)
	}
	if err != nil {
		return c.fail(nil, fmt.Errorf("%w: %w", errInput, err), "")
	}
	r := client.NewRequest(append([]string{c.name}, c.words...))
	r.AddEnv("CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH")
	r.Stdin = stdin
	state, err := statedir.Open(c.state)
	if err != nil {
		return c.fail(stdin, err, "")
	}
	code, err := client.Forward(context.Background(), state.Path(client.SocketName), r, os.Stdout, os.Stderr)
	switch {
	case errors.Is(err, client.ErrDeclined):
		return c.fail(stdin, c.execute(stdin), installHint)
	case err != nil:
		return c.fail(stdin, err, "the next call undoes what is incomplete")
	}
	return code
}

// contractOf returns the contract of a command line, and a function that reads the input.
func contractOf(argv []string) (c contract, read func() ([]byte, error), err error) {
	name := filepath.Base(argv[0])
	stdin := func() ([]byte, error) { return io.ReadAll(io.LimitReader(os.Stdin, client.MaxRequest)) }
	if name == cni || os.Getenv("CNI_COMMAND") != "" {
		words := []string{os.Getenv("CNI_COMMAND"), os.Getenv("CNI_CONTAINERID")}
		return contract{name: cni, words: words, fail: failCNI}, stdin, nil
	}
	c = contract{name: args.Plugin, words: argv[1:], fail: failNetavark}
	if name == args.Program {
		c.name = args.Program
	}
	line, err := args.Parse(argv[1:])
	if err != nil {
		return c, nil, err
	}
	c.state = line.StateDir()
	switch {
	case line.File != "": // perhaps a pipe, which can be read once
		c.words = line.Words
		return c, func() ([]byte, error) { return os.ReadFile(line.File) }, nil
	case line.Command == "create", line.Command == "setup", line.Command == "teardown":
		return c, stdin, nil
	}
	return c, func() ([]byte, error) { return nil, nil }, nil
}

// execute replaces this process with cleat, which reads the configuration once more.
func (c contract) execute(stdin []byte) error {
	path, err := program.Find("cleat")
	if err != nil { // engines may have a short PATH
		path, err = program.FindIn("/usr/local/bin:/usr/bin", "cleat")
	}
	if err != nil {
		return fmt.Errorf("no keeper runs: %w", err)
	}
	if stdin != nil {
		if err := setStdin(stdin); err != nil {
			return fmt.Errorf("pass the configuration: %w", err)
		}
	}
	return fmt.Errorf("start %s: %w", path, syscall.Exec(path, append([]string{c.name}, c.words...), os.Environ()))
}

// setStdin makes a text the standard input.
func setStdin(text []byte) error {
	fd, err := unix.MemfdCreate("stdin", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "stdin")
	if _, err := f.Write(text); err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return unix.Dup3(fd, 0, 0)
}

// failCNI prints an error as the CNI specification has it, in the version of the configuration, and returns
// the exit code.
func failCNI(stdin []byte, err error, details string) int {
	const ioFailure, tryAgainLater = 5, 11
	code := tryAgainLater
	if errors.Is(err, errInput) {
		code = ioFailure
	}
	conf := struct {
		CNIVersion string `json:"cniVersion"`
	}{"1.1.0"}
	_ = json.Unmarshal(stdin, &conf) // cleat reports what is wrong with it
	return fail(map[string]any{"cniVersion": conf.CNIVersion, "code": code, "msg": err.Error(), "details": details})
}

// failNetavark prints an error as netavark does, and returns the exit code.
func failNetavark(_ []byte, err error, details string) int {
	if details != "" {
		err = fmt.Errorf("%w; %s", err, details)
	}
	return fail(map[string]string{"error": err.Error()})
}

func fail(v any) int {
	text, _ := json.Marshal(v) // strings and numbers can be encoded
	fmt.Printf("%s\n", text)
	return 1
}
