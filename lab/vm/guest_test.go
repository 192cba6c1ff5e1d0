package vm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"cleat/lab/vm"

	"golang.org/x/sys/unix"
)

// guest configures a guest with the oldest kernel that runs a shell command.
func guest(t *testing.T, command string) vm.Config {
	t.Helper()
	k, userland := fetch(t, need(t), vm.Suites[0])
	return vm.Config{Kernel: k, Userland: userland, Command: []string{"/bin/sh", "-c", command}}
}

func TestGuestStatus(t *testing.T) {
	t.Parallel()
	cfg := guest(t, "")
	for _, tt := range []struct {
		name, command string
		status        int
		output        string
	}{
		{"success, much output", "echo hello; uname -s; yes | head -n 50000", 0, "hello\nLinux\n" + strings.Repeat("y\n", 50000)},
		{"failure, no end of line", "echo no; printf end; exit 3", 3, "no\nend"},
		{"killed by a signal", "echo up; kill -9 $$", 127, "up\nKilled\n"}, // printed by init
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := cfg
			cfg.Command = []string{"/bin/sh", "-c", tt.command}
			res, err := vm.Boot(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			if res.Status != tt.status || string(res.Output) != tt.output {
				t.Errorf("got status %d and %d bytes of output, at last %q; want %d and %d",
					res.Status, len(res.Output), res.Output[max(0, len(res.Output)-100):], tt.status, len(tt.output))
			}
		})
	}
}

func TestGuestPanicIsAnError(t *testing.T) {
	t.Parallel()
	cfg := guest(t, "echo c >/proc/sysrq-trigger")
	var console bytes.Buffer
	cfg.Console = &console
	res, err := vm.Boot(t.Context(), cfg)
	if !errors.Is(err, vm.ErrGuestDied) {
		t.Fatalf("got status %d and %v, want %v", res.Status, err, vm.ErrGuestDied)
	}
	if want := "sysrq triggered crash"; !strings.Contains(err.Error(), want) || !strings.Contains(console.String(), want) {
		t.Errorf("want %q in the error and in the log: %v", want, err)
	}
}

// onFirst calls f on the first write.
type onFirst struct{ f func() }

func (o *onFirst) Write(p []byte) (int, error) {
	if o.f != nil {
		o.f()
		o.f = nil
	}
	return len(p), nil
}

func TestGuestEndsWithContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cfg := guest(t, "echo up; sleep 1000")
	cfg.Output = &onFirst{cancel}
	res, err := vm.Boot(ctx, cfg)
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want %v", err, context.Canceled)
	}
	if len(res.Output) == 0 {
		t.Error("the output of the guest is lost")
	}
}

// helperEnv makes the test binary boot a guest that never ends. Its value is the cache
// directory.
const helperEnv = "CLEAT_VM_HELPER"

func TestMain(m *testing.M) {
	if cache := os.Getenv(helperEnv); cache != "" {
		fmt.Println(bootForever(cache))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// bootForever runs in the process that TestGuestDiesWithItsParent kills.
func bootForever(cache string) error {
	ctx := context.Background()
	k, err := vm.FetchKernel(ctx, cache, vm.Suites[0])
	if err != nil {
		return err
	}
	userland, err := vm.FetchUserland(ctx, cache)
	if err != nil {
		return err
	}
	_, err = vm.Boot(ctx, vm.Config{
		Kernel: k, Userland: userland, Output: os.Stdout,
		Command: []string{"/bin/sh", "-c", "echo up; sleep 1000"},
	})
	return err
}

func TestGuestDiesWithItsParent(t *testing.T) {
	t.Parallel()
	cache := need(t)
	fetch(t, cache, vm.Suites[0])
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperEnv+"="+cache)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	var up [3]byte
	if _, err := io.ReadFull(out, up[:]); err != nil || string(up[:]) != "up\n" {
		t.Fatalf("helper printed %q: %v", up, err)
	}
	children := childrenOf(t, cmd.Process.Pid)
	if len(children) != 1 {
		t.Fatalf("helper has children %v, want QEMU alone", children)
	}
	qemu, err := unix.PidfdOpen(children[0], 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(qemu)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	// A pidfd becomes readable when its process ends.
	var n int
	err = unix.EINTR
	for err == unix.EINTR {
		n, err = unix.Poll([]unix.PollFd{{Fd: int32(qemu), Events: unix.POLLIN}}, int(qemuEndTimeout/time.Millisecond))
	}
	if err != nil || n != 1 {
		unix.PidfdSendSignal(qemu, unix.SIGKILL, nil, 0)
		t.Errorf("QEMU still runs %s after its parent was killed: %v", qemuEndTimeout, err)
	}
}

// qemuEndTimeout is far longer than the delivery of a signal takes.
const qemuEndTimeout = 30 * time.Second

// childrenOf returns the process ids of the children of all threads of a process.
func childrenOf(t *testing.T, pid int) []int {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	var out []int
	for _, l := range lists {
		b, err := os.ReadFile(l)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range strings.Fields(string(b)) {
			child, err := strconv.Atoi(f)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, child)
		}
	}
	return out
}
