package traffic_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"testing"
	"time"

	"cleat/lab"
	"cleat/traffic"
)

// childVariable describes what this test binary does in a child process, which a test can
// kill, pin, or start in a node.
const childVariable = "TRAFFIC_TEST_CHILD"

// child is a server or a client.
type child struct {
	Serve            bool
	Address, Control string
	CPU              int // -1: any
	Engine           traffic.Engine
	Work             traffic.Work
	Duration         time.Duration
	MessageBytes     int
	Congestion       string
	BitsPerSecond    float64
	PerSecond        float64 // transactions
	GSO              bool
}

// asChild runs the child that childVariable describes; ok is false if it is not set.
func asChild() (code int, ok bool) {
	text := os.Getenv(childVariable)
	if text == "" {
		return 0, false
	}
	var c child
	err := json.Unmarshal([]byte(text), &c)
	if err == nil && c.CPU >= 0 {
		err = traffic.Pin(c.CPU)
	}
	if err == nil {
		err = c.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1, true
	}
	return 0, true
}

func (c child) run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if c.Serve {
		ready := func(at string) { fmt.Println(at) }
		return traffic.Serve(ctx, traffic.ServeConfig{Listen: c.Address, Control: c.Control, Engine: c.Engine, Ready: ready})
	}
	r, err := traffic.Run(ctx, traffic.Config{
		Work: c.Work, Engine: c.Engine, Address: c.Address, Control: c.Control, Duration: c.Duration,
		MessageBytes: c.MessageBytes, Congestion: c.Congestion, BitsPerSecond: c.BitsPerSecond, TransactionsPerSecond: c.PerSecond, GSO: c.GSO,
	})
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

// command returns a command that runs c.
func (c child) command(t *testing.T) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	return cmd
}

// startOn starts cmd on a node, or without one in the test's own namespace.
func startOn(node *lab.Node, cmd *exec.Cmd) error {
	if node == nil {
		return cmd.Start()
	}
	return node.NS.Start(cmd)
}

// server starts a server and waits until it is ready. The process is killed when the test
// ends.
func (c child) server(t *testing.T, node *lab.Node) (cmd *exec.Cmd, address string) {
	t.Helper()
	c.Serve = true
	cmd = c.command(t)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = startOn(node, cmd)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	line := make([]byte, 128)
	n, err := out.Read(line)
	if err != nil {
		t.Fatalf("the server says nothing: %v", err)
	}
	return cmd, strings.TrimSpace(string(line[:n]))
}

// client runs one test and returns its result or error.
func (c child) client(t *testing.T, node *lab.Node) (r traffic.Result, err error) {
	t.Helper()
	if c.Duration == 0 {
		c.Duration = 100 * time.Millisecond
	}
	cmd := c.command(t)
	var out, complaint strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := startOn(node, cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		return r, errors.New(strings.TrimSpace(complaint.String()))
	}
	return r, json.Unmarshal([]byte(out.String()), &r)
}
