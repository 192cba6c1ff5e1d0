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

// helper serves a guest in a tier, with its own input and output.
func helper(args []string) error {
	ctx := context.Background()
	n, err := sandbox.New(sandbox.Config{Tier: sandbox.Tier(args[0])})
	if err != nil {
		return err
	}
	cmd, _ := guest(ctx, args[1], args[2:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return n.Exec(ctx, cmd)
}

// A helper that is killed takes the network with it, and nothing else: the
// command lives on without, and nothing is left in the file system.
func TestHelperIsKilled(t *testing.T) {
	world(t)
	server := answerTCP(t, outside4, "hello", false)
	before := leftovers(t)
	said, feed := killedHelper(t, "", "wait", "tcp", server.String())
	feed.Close() // now the command dials
	if line, err := said.ReadString('\n'); line != "ENETUNREACH\n" {
		t.Errorf("the command said %q, %v", line, err)
	}
	if d := cmp.Diff(before, leftovers(t)); d != "" {
		t.Error(d)
	}
}

// killedHelper is what a guest says, and its input, whose helper was killed when it
// was ready.
func killedHelper(t *testing.T, args ...string) (said *bufio.Reader, feed io.Closer) {
	t.Helper()
	cmd, _ := guest(patience(t), "helper", args...)
	stdin, feed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { feed.Close() })
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
	said = bufio.NewReader(read)
	if line, err := said.ReadString('\n'); line != "ready\n" {
		t.Fatalf("the command said %q, %v", line, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	return said, feed
}

// Both ends of a spliced connection are reset: a part of a message never looks like
// all of it.
func TestSpliceTierWhoseHelperIsKilled(t *testing.T) {
	world(t)
	heard := make(chan error, 1)
	server := labtest.Serve(t, nil, outside4+":0", func(c net.Conn) {
		io.WriteString(c, "part")
		_, err := io.Copy(io.Discard, c)
		heard <- err
	})
	said, _ := killedHelper(t, string(sandbox.TierSplice), "hold", server.String())
	if line, err := said.ReadString('\n'); line != "ECONNRESET\n" {
		t.Errorf("the command said %q, %v", line, err)
	}
	if err := <-heard; !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the server heard %v, want a reset", err)
	}
}

// hold connects, reads something, and tells how the rest goes.
func hold(args []string) error {
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
	fmt.Println(name(err))
	return nil
}

func TestExecEndsWithItsContext(t *testing.T) {
	world(t)
	ctx, cancel := context.WithCancel(patience(t))
	n := newNetwork(t, sandbox.Config{})
	s := start(t, func(_ context.Context, cmd *exec.Cmd) error { return n.Exec(ctx, cmd) }, "wait")
	cancel()
	var exit *exec.ExitError
	if err := <-s.ended; !errors.As(err, &exit) || exit.ExitCode() != -1 {
		t.Errorf("error %v: the command was to be killed", err)
	}
}

// Run ends with its context, and takes the network with it; the command lives on.
func TestRunEndsWithItsContext(t *testing.T) {
	world(t)
	server := answerTCP(t, outside4, "hello", false)
	ctx, cancel := context.WithCancel(patience(t))
	n := newNetwork(t, sandbox.Config{})
	ran := make(chan error, 1)
	said := &bytes.Buffer{}
	s := start(t, func(_ context.Context, cmd *exec.Cmd) error {
		cmd.Stderr = said
		if err := errors.Join(n.Wrap(cmd), cmd.Start()); err != nil {
			return err
		}
		go func() { ran <- n.Run(ctx) }()
		return cmd.Wait()
	}, "wait-aside", "tcp", server.String())
	cancel()
	if err := <-ran; err != nil {
		t.Errorf("Run: %v", err)
	}
	if _, err := n.Forward(sandbox.Forward{Protocol: sandbox.TCP}); err == nil {
		t.Error("a port was opened after the end")
	}
	if err := n.Run(patience(t)); err == nil {
		t.Error("Run ran twice")
	}
	s.stdin.Close()
	if err := <-s.ended; err != nil {
		t.Error(err)
	}
	if got := said.String(); got != "ENETUNREACH\n" {
		t.Errorf("the command said %q", got)
	}
}

// leftovers are files and mounts where some could be left.
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
