package endpoint_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"testing"

	"cleat/lab"
	"cleat/tunnel"
	"cleat/tunnel/endpoint"
	"cleat/tunnel/spec"
)

// endArg makes the test binary one end of a tunnel: PROGRAM endArg FILE. It reads
// commands from standard input, one per line, and answers each with a line.
const endArg = "tunnel-end"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == endArg {
		if err := runEnd(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(lab.RunTests(m))
}

// runEnd runs one end until its commands end.
func runEnd(file string) error {
	t, err := loadSpec(file)
	if err != nil {
		return err
	}
	tell := func(e tunnel.Event) { fmt.Fprintln(os.Stderr, e.Kind, e.Path, e.Err) }
	e, err := endpoint.New(t, tell)
	if err != nil {
		return err
	}
	defer e.Close()
	reread := []string{file}
	if t.Key != nil {
		reread = append(reread, t.Key.File)
	}
	sealed, err := endpoint.Seal(endpoint.SealConfig{Reread: reread})
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "sealed: %+v\n", sealed)
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		defer stop()
		orders := bufio.NewScanner(os.Stdin)
		for orders.Scan() {
			answer, err := execute(e, file, strings.Fields(orders.Text()))
			if err != nil {
				answer = "error: " + err.Error()
			}
			fmt.Println(answer)
		}
	}()
	return e.Run(ctx)
}

// execute executes a command.
func execute(e *endpoint.Endpoint, file string, order []string) (answer string, err error) {
	switch order[0] {
	case "up", "down":
		return "ok", e.SetPath(order[1], order[0] == "up")
	case "reload":
		t, err := loadSpec(file)
		if err != nil {
			return "", err
		}
		return "ok", e.Apply(spec.Compare(e.Spec(), t))
	case "rekey":
		e.Rekey()
		return "ok", nil
	case "try":
		return strings.Join(allowedActions(file), ","), nil
	case "status":
		b, err := json.Marshal(e.Status())
		return string(b), err
	}
	return "", fmt.Errorf("unknown command %q", order)
}

// loadSpec loads a tunnel file.
func loadSpec(name string) (*spec.Tunnel, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	open := func(path string) (io.ReadCloser, fs.FileMode, error) {
		k, err := os.Open(path)
		if err != nil {
			return nil, 0, err
		}
		return k, 0o600, nil
	}
	file, err := spec.Load(f, name, open)
	if err != nil {
		return nil, err
	}
	for _, finding := range file.Findings {
		if finding.Severity == spec.Error {
			err = errors.Join(err, errors.New(finding.String()))
		}
	}
	return file.Tunnel, err
}
