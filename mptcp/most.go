package mptcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"cleat/link"
	"cleat/netns"

	"golang.org/x/sys/unix"
)

// environ is the variable that makes a copy of this program ask the kernel for FindMost.
const environ = "CLEAT_MPTCP_MOST"

// answer is the output of that copy.
type answer struct {
	Most  link.MPTCPCapacity
	Error string
}

// Init must be called first in main by programs that use FindMost. In a process started
// by FindMost, it does that process's work and does not return.
func Init() {
	if os.Getenv(environ) == "" {
		return
	}
	var a answer
	ns, err := netns.Current()
	if err == nil {
		a.Most, err = link.ProbeMPTCPCapacity(ns)
	}
	if err != nil {
		a.Error = err.Error()
	}
	if json.NewEncoder(os.Stdout).Encode(a) != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// FindMost returns how much MPTCP the running kernel permits. It asks in a new network
// namespace, in the caller's user namespace if that is permitted, otherwise in a new one.
func FindMost(ctx context.Context) (link.MPTCPCapacity, error) {
	most, err := findMostHere()
	if errors.Is(err, unix.EPERM) {
		return findMostAsUser(ctx)
	}
	return most, err
}

func findMostHere() (link.MPTCPCapacity, error) {
	ns, err := netns.New("probe-mptcp")
	if err != nil {
		return link.MPTCPCapacity{}, err
	}
	defer ns.Close()
	return link.ProbeMPTCPCapacity(ns)
}

func findMostAsUser(ctx context.Context) (link.MPTCPCapacity, error) {
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = []string{"cleat", "mptcp", "(limits)"}
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, environ+"=") }), environ+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
	out, err := cmd.Output()
	if err != nil {
		return link.MPTCPCapacity{}, fmt.Errorf("ask the kernel for its limits in a user namespace: %w", err)
	}
	var a answer
	if err := json.NewDecoder(bytes.NewReader(out)).Decode(&a); err != nil {
		return link.MPTCPCapacity{}, fmt.Errorf("ask the kernel for its limits in a user namespace: %w", err)
	}
	if a.Error != "" {
		return link.MPTCPCapacity{}, errors.New(a.Error)
	}
	return a.Most, nil
}
