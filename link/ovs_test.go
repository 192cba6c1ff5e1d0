package link_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cleat/lab"
	"cleat/link"
)

// needOVS skips the test if the programs, or TUN devices for a datapath in user space,
// are missing. Unlike the conformance suite it does not need the kernel's datapath.
func needOVS(t *testing.T) {
	t.Helper()
	lab.Need(t)
	if _, err := exec.LookPath("ovs-vswitchd"); err != nil {
		t.Skip(err)
	}
	requireKind(t, "tun")
}

// kernelOVSWorks reports whether the conformance suite tests the same with the kernel's
// datapath. It saves time in slow guests.
func kernelOVSWorks(t *testing.T) bool {
	t.Helper()
	if link.Probe("openvswitch") == nil {
		t.Log("TestConformance/openvswitch covers it here")
		return true
	}
	return false
}

// TestOVSInUserSpace runs a switch with the datapath in user space.
func TestOVSInUserSpace(t *testing.T) {
	needOVS(t)
	if kernelOVSWorks(t) {
		return
	}
	br := newNS(t, "bridge")
	o := startOVS(t, br)
	spec := link.OVSBridgeSpec{Attrs: attrs("br0"), DB: o.DB(), DatapathType: link.OVSNetdev}
	create(t, br, spec, nil)
	if _, err := link.Create(br, spec, link.Target{}); !errors.Is(err, link.ErrExists) {
		t.Errorf("create the same bridge again: %v, want ErrExists", err)
	}
	a, b := ovsMachine(t, o, br, "m1", "192.0.2.1/24", 7), ovsMachine(t, o, br, "m2", "192.0.2.2/24", 7)
	other := ovsMachine(t, o, br, "m3", "192.0.2.3/24", 8)
	for _, e := range []*endpoint{a, b} { // this datapath does not compute checksums
		must(t, e.link.SetOffload("tx", false))
	}
	checkReachable(t, a, b)
	checkIsolated(t, other, a, b)
}

// TestOVSParametersInUserSpace runs the part of the conformance suite that does not
// depend on the datapath.
func TestOVSParametersInUserSpace(t *testing.T) {
	needOVS(t)
	if kernelOVSWorks(t) {
		return
	}
	t.Run("bridge", ovsSuiteOn(link.OVSNetdev).createsValid)
	t.Run("port", ovsPortSuiteOn(link.OVSNetdev).createsValid)
}

// TestOVSPortKeepsItsLink shows that closing a port of type system removes it from the
// bridge and keeps its link.
func TestOVSPortKeepsItsLink(t *testing.T) {
	needOVS(t)
	br := newNS(t, "bridge")
	o := startOVS(t, br)
	create(t, br, link.OVSBridgeSpec{Attrs: attrs("br0"), DB: o.DB(), DatapathType: link.OVSNetdev}, nil)
	cable(t, br, "port", br, "wire")
	spec := link.OVSPortSpec{Attrs: attrs("port"), Bridge: "br0", DB: o.DB()}
	l, err := link.Create(br, spec, link.Target{})
	must(t, err)
	if _, err := link.Create(br, spec, link.Target{}); !errors.Is(err, link.ErrExists) {
		t.Errorf("create the same port again: %v, want ErrExists", err)
	}
	must(t, l.Close())
	find(t, br, "port")
	must(t, l.Close()) // closing twice is harmless
	var p *link.ParamError
	spec.Name = "nobody"
	if _, err := link.Create(br, spec, link.Target{}); !errors.As(err, &p) || p.Param != "name" {
		t.Errorf("create a port without a link: %v, want a *ParamError for name", err)
	}
	spec = link.OVSPortSpec{Attrs: attrs("inner"), Bridge: "nobody", Type: link.OVSInternalPort, DB: o.DB()}
	if _, err := link.Create(br, spec, link.Target{}); err == nil {
		t.Error("created a port of a missing bridge")
	}
}

// TestStartOVSLeavesNothing checks for leftovers after a failed start and after Close.
func TestStartOVSLeavesNothing(t *testing.T) {
	needOVS(t)
	br := newNS(t, "bridge")
	dir := filepath.Join(t.TempDir(), "ovs")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := link.StartOVS(ctx, br, dir); err == nil {
		t.Fatal("StartOVS succeeded in a canceled context")
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory after a failed start: %v, want none", err)
	}
	before := takeSnapshot(t, br)
	o, err := link.StartOVS(t.Context(), br, dir)
	must(t, err)
	must(t, o.Close())
	must(t, o.Close()) // twice is harmless
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory after Close: %v, want none", err)
	}
	checkSnapshot(t, before, br)
	if left := processesUsing(t, dir); left != nil {
		t.Errorf("still running: %q", left)
	}
}

// processesUsing returns the command lines that mention dir.
func processesUsing(t *testing.T, dir string) []string {
	t.Helper()
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(t, err)
	var out []string
	for _, c := range commands {
		if b, err := os.ReadFile(c); err == nil && strings.Contains(string(b), dir) {
			out = append(out, string(b))
		}
	}
	return out
}

// ovsOwnerEnv makes a run of TestOVSDiesWithItsOwner the owner of a switch, in the
// directory that it names.
const ovsOwnerEnv = "CLEAT_TEST_OVS_OWNER"

// TestOVSDiesWithItsOwner kills a process that started a switch.
func TestOVSDiesWithItsOwner(t *testing.T) {
	needOVS(t)
	if dir := os.Getenv(ovsOwnerEnv); dir != "" {
		_, err := link.StartOVS(t.Context(), newNS(t, "bridge"), dir)
		must(t, err)
		fmt.Println("ready")
		select {} // until killed
	}
	dir := filepath.Join(t.TempDir(), "ovs")
	owner := exec.Command(os.Args[0], "-test.run", "^TestOVSDiesWithItsOwner$")
	owner.Env = append(os.Environ(), ovsOwnerEnv+"="+dir, "CLEAT_LAB=none") // it shares this lab
	owner.Stderr = os.Stderr
	out, err := owner.StdoutPipe()
	must(t, err)
	must(t, owner.Start())
	_, err = bufio.NewReader(out).ReadString('\n')
	must(t, err)
	if n := len(processesUsing(t, dir)); n != 2 {
		t.Errorf("%d processes use the switch's directory, want 2", n)
	}
	must(t, owner.Process.Kill())
	owner.Wait() // an error: it was killed
	again := time.NewTicker(retryInterval)
	defer again.Stop()
	for until := time.Now().Add(timeout); processesUsing(t, dir) != nil; <-again.C {
		if time.Now().After(until) {
			t.Fatalf("still running: %q", processesUsing(t, dir))
		}
	}
}
