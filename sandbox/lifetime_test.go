package sandbox_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"cleat/lab/labtest"
	"cleat/sandbox"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// hostSide runs a guest in a tier, with its own input and output.
func hostSide(args []string) error {
	ctx := context.Background()
	n, err := sandbox.New(sandbox.Config{Tier: sandbox.Tier(args[0])})
	if err != nil {
		return err
	}
	cmd, _ := guest(ctx, args[1], args[2:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return n.Exec(ctx, cmd)
}

// If the host side is killed, the network disappears and nothing else. The command
// continues without it, and nothing is left in the file system.
func TestKilledHostSide(t *testing.T) {
	fakeInternet(t)
	server := serveTCP(t, outside4, "hello", false)
	before := leftovers(t)
	output, input := killHostSide(t, "", "wait", "tcp", server.String())
	input.Close() // makes the command dial
	if line, err := output.ReadString('\n'); line != "ENETUNREACH\n" {
		t.Errorf("the command printed %q (%v), want ENETUNREACH", line, err)
	}
	if d := cmp.Diff(before, leftovers(t)); d != "" {
		t.Error(d)
	}
}

// killHostSide runs a guest and kills its host side once it is ready. It returns the
// guest's output and input.
func killHostSide(t *testing.T, args ...string) (output *bufio.Reader, input io.Closer) {
	t.Helper()
	cmd, _ := guest(testContext(t), "host-side", args...)
	stdin, input, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { input.Close() })
	read, stdout, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { read.Close() })
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stdin.Close()
	stdout.Close()
	output = bufio.NewReader(read)
	if line, err := output.ReadString('\n'); line != "ready\n" {
		t.Fatalf("the command printed %q (%v), want ready", line, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	return output, input
}

// Both ends of a spliced connection are reset, so that neither takes part of a message
// for all of it.
func TestSpliceTierKilledHostSide(t *testing.T) {
	fakeInternet(t)
	serverErr := make(chan error, 1)
	server := labtest.Serve(t, nil, outside4+":0", func(c net.Conn) {
		io.WriteString(c, "part")
		_, err := io.Copy(io.Discard, c)
		serverErr <- err
	})
	output, _ := killHostSide(t, string(sandbox.TierSplice), "hold", server.String())
	if line, err := output.ReadString('\n'); line != "ECONNRESET\n" {
		t.Errorf("the command printed %q (%v), want ECONNRESET", line, err)
	}
	if err := <-serverErr; !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the server got error %v, want %v", err, unix.ECONNRESET)
	}
}

// holdConnection connects, reads something, and prints how the connection ends.
func holdConnection(args []string) error {
	c, err := net.Dial("tcp", args[0])
	if err != nil {
		return err
	}
	if _, err := io.ReadFull(c, make([]byte, 4)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("part")); err != nil {
		return err
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, c)
	fmt.Println(errnoName(err))
	return nil
}

func TestExecEndsWithItsContext(t *testing.T) {
	fakeInternet(t)
	ctx, cancel := context.WithCancel(testContext(t))
	n := newNetwork(t, sandbox.Config{})
	s := startGuest(t, func(_ context.Context, cmd *exec.Cmd) error { return n.Exec(ctx, cmd) }, "wait")
	cancel()
	var exit *exec.ExitError
	if err := <-s.result; !errors.As(err, &exit) || exit.ExitCode() != -1 {
		t.Errorf("got error %v, want a killed command", err)
	}
}

// Run ends with its context, and the network with it. The command continues.
func TestRunEndsWithItsContext(t *testing.T) {
	fakeInternet(t)
	server := serveTCP(t, outside4, "hello", false)
	ctx, cancel := context.WithCancel(testContext(t))
	n := newNetwork(t, sandbox.Config{})
	runErr := make(chan error, 1)
	output := &bytes.Buffer{}
	s := startGuest(t, func(_ context.Context, cmd *exec.Cmd) error {
		cmd.Stderr = output
		if err := errors.Join(n.Wrap(cmd), cmd.Start()); err != nil {
			return err
		}
		go func() { runErr <- n.Run(ctx) }()
		return cmd.Wait()
	}, "wait-stderr", "tcp", server.String())
	cancel()
	if err := <-runErr; err != nil {
		t.Errorf("Run: %v", err)
	}
	if _, err := n.Forward(sandbox.Forward{Protocol: sandbox.TCP}); err == nil {
		t.Error("Forward succeeded after Run had returned")
	}
	if err := n.Run(testContext(t)); err == nil {
		t.Error("the second Run succeeded")
	}
	s.stdin.Close()
	if err := <-s.result; err != nil {
		t.Error(err)
	}
	if got := output.String(); got != "ENETUNREACH\n" {
		t.Errorf("the command printed %q, want ENETUNREACH", got)
	}
}

// leftovers returns files and mounts in the places where a network could leave some.
func leftovers(t *testing.T) []string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	all := []string{string(mounts)}
	for _, pattern := range []string{"/dev/shm/*", "/run/*", "/tmp/cleat*", "/sys/class/net/*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	return all
}
