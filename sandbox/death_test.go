package sandbox_test

import (
	"bufio"
	"context"
	"os"
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
