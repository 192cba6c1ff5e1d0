// Command cleat-cni is the CNI plug-in for networks of cleat. It is small, so that it starts fast: it has a
// running keeper do the work, and starts `cleat` if there is none. `cleat cleat-cni --help` says more.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"cleat/internal/program"
	"cleat/internal/statedir"
	"cleat/network/keep/client"

	"golang.org/x/sys/unix"
)

// name is the plug-in's name in requests, and argv[0] of cleat.
const name = "cleat-cni"

func main() { os.Exit(run()) }

// usage is printed for people, who give arguments or type no input. Runtimes do neither.
const usage = `cleat-cni connects containers to networks of "cleat net". Container runtimes start it
(CNI 0.3.0 to 1.1.0), with the variables CNI_* and a configuration on its standard input.

  cleat net cni-conf NETWORK      prints a configuration for /etc/cni/net.d
  cleat cleat-cni --help          says more
`

func run() int {
	switch {
	case len(os.Args) > 1:
		fmt.Print(usage)
		return 0
	case os.Getenv("CNI_COMMAND") == "":
		fmt.Fprint(os.Stderr, usage)
		return 2
	}
	stdin, err := io.ReadAll(io.LimitReader(os.Stdin, client.MaxRequest))
	if err != nil {
		return fail(fmt.Errorf("read the configuration: %w", err), "")
	}
	r := client.NewRequest([]string{name, os.Getenv("CNI_COMMAND"), os.Getenv("CNI_CONTAINERID")})
	r.AddEnv("CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH")
	r.Stdin = stdin
	state, err := statedir.Open("")
	if err != nil {
		return fail(err, "")
	}
	code, err := client.Forward(context.Background(), state.Path(client.SocketName), r, os.Stdout, os.Stderr)
	switch {
	case errors.Is(err, client.ErrDeclined):
		return fail(execute(stdin), "install cleat in /usr/bin or /usr/local/bin")
	case err != nil:
		return fail(err, "the next call undoes what is incomplete")
	}
	return code
}

// execute replaces this process with cleat, which reads the configuration once more.
func execute(stdin []byte) error {
	path, err := program.Find("cleat")
	if err != nil { // runtimes may have a short PATH
		path, err = program.FindIn("/usr/local/bin:/usr/bin", "cleat")
	}
	if err != nil {
		return fmt.Errorf("no keeper runs: %w", err)
	}
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("pass the configuration: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.Write(stdin); err != nil {
		return fmt.Errorf("pass the configuration: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("pass the configuration: %w", err)
	}
	if err := unix.Dup3(fd, 0, 0); err != nil {
		return fmt.Errorf("pass the configuration: %w", err)
	}
	return fmt.Errorf("start %s: %w", path, syscall.Exec(path, []string{name}, os.Environ()))
}

// fail prints an error as the CNI specification has it, and returns the exit code.
func fail(err error, details string) int {
	const tryAgainLater = 11
	text, _ := json.Marshal(map[string]any{"cniVersion": "1.1.0", "code": tryAgainLater, "msg": err.Error(), "details": details})
	fmt.Printf("%s\n", text)
	return 1
}
