package sandbox_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"cleat/sandbox"

	"github.com/google/go-cmp/cmp"
)

// helper serves a command that waits, with its own input and output.
func helper(args []string) error {
	ctx := context.Background()
	n, err := sandbox.New(sandbox.Config{})
	if err != nil {
		return err
	}
	cmd, _ := guest(ctx, "wait", append([]string{"tcp"}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return n.Exec(ctx, cmd)
}

// A helper that is killed takes the network with it, and nothing else: the
// command lives on without, and nothing is left in the file system.
func TestHelperIsKilled(t *testing.T) {
	world(t)
	server := answerTCP(t, outside4, "hello", false)
	before := leftovers(t)
	cmd, _ := guest(patience(t), "helper", server.String())
	stdin, feed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer feed.Close()
	read, stdout, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stdin.Close()
	stdout.Close()
	said := bufio.NewReader(read)
	if line, err := said.ReadString('\n'); line != "ready\n" {
		t.Fatalf("the command said %q, %v", line, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	feed.Close() // now the command dials
	if line, err := said.ReadString('\n'); line != "ENETUNREACH\n" {
		t.Errorf("the command said %q, %v", line, err)
	}
	if d := cmp.Diff(before, leftovers(t)); d != "" {
		t.Error(d)
	}
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
