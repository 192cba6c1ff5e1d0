package usernettest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"

	"cleat/lab"
)

// Child processes hold a socket for a case, so that the socket's owner can be stopped or
// killed. The socket is descriptor 3. They are started as
//
//	PROGRAM usernettest-child source BYTES SEED
//	PROGRAM usernettest-child sink
//
// and print the SHA-256 of what they moved.
const childArg = "usernettest-child"

// RunChild must be called first in TestMain. In a child process it does the child's work
// and exits.
func RunChild() {
	if len(os.Args) < 3 || os.Args[1] != childArg {
		return
	}
	if err := child(os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func child(role string, args []string) error {
	f := os.NewFile(3, "socket")
	c, err := net.FileConn(f)
	if err != nil {
		return fmt.Errorf("use the inherited socket: %w", err)
	}
	f.Close()
	switch role {
	case "source":
		bytes, err1 := strconv.ParseInt(args[0], 10, 64)
		seed, err2 := strconv.ParseUint(args[1], 10, 64)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		sum, err := source(c, bytes, seed)
		if err != nil {
			return err
		}
		fmt.Println(sum)
		return c.(*net.TCPConn).CloseWrite()
	case "sink":
		_, sum, err := sink(c)
		if err != nil {
			return err
		}
		fmt.Println(sum)
		return nil
	}
	return fmt.Errorf("unknown role %q", role)
}

// childProc is a running child.
type childProc struct {
	lab.Proc
	out *os.File
}

// child passes the connection to a new process on the node, and closes ours.
func (x *T) child(n *lab.Node, c *net.TCPConn, args ...string) *childProc {
	f, err := c.File()
	x.Must(err)
	defer f.Close()
	defer c.Close()
	r, w, err := os.Pipe()
	x.Must(err)
	defer w.Close()
	p, err := n.Start(lab.Command{Args: append([]string{lab.Self, childArg}, args...), Extra: []*os.File{f}, Stdout: w, Stderr: w})
	if err != nil {
		r.Close()
		x.Must(err)
	}
	x.Cleanup(func() {
		p.Kill()
		p.Wait()
		r.Close()
	})
	return &childProc{p, r}
}

// sum waits for the child and returns what it printed.
func (c *childProc) sum() (string, error) {
	output, err := io.ReadAll(c.out)
	if werr := c.Wait(); werr != nil {
		return "", fmt.Errorf("child: %w: %s", werr, output)
	}
	return strings.TrimSpace(string(output)), err
}
