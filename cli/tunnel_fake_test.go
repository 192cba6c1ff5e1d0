package cli

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"cleat/tunnel"
	"cleat/tunnel/control"
	"cleat/tunnel/sched"
	"cleat/tunnel/spec"
)

// fakeTunnelEnv, if set in the environment, makes the test binary a fake tunnel.
const fakeTunnelEnv = "CLEAT_TEST_FAKE_TUNNEL"

// writeFakeTunnel writes a program to the directory of cleat that runs a fake tunnel:
//
//	fake-tunnel NAME
func writeFakeTunnel(dir string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	script := fmt.Sprintf("#!/bin/sh\n%s=1 exec %s \"$@\"\n", fakeTunnelEnv, self)
	return os.WriteFile(filepath.Join(dir, "fake-tunnel"), []byte(script), 0o755)
}

// fakeTunnel is a control.Target without a tunnel. The file "reload" in the working
// directory decides the result of a reload: "refuse", "mistake" or none.
type fakeTunnel struct {
	mu    sync.Mutex
	name  string
	paths []tunnel.PathStatus
	asked uint64
	stop  context.CancelFunc
}

func runFakeTunnel(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	l, err := control.Listen(args[0])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	f := &fakeTunnel{name: args[0], stop: stop}
	for i, device := range []string{"eth0", "wwan0"} {
		f.paths = append(f.paths, tunnel.PathStatus{
			PathConfig: tunnel.PathConfig{Name: []string{"dsl", "lte"}[i], Device: device, Port: 4754, MTU: 1500, Remote: netip.MustParseAddrPort("198.51.100.2:4754")},
			Open:       true, InUse: true, Share: 0.5, Status: sched.Status{Up: true, Live: true, RateBitsPerSec: 50e6, DeliveredBitsPerSec: 40e6, RTT: 10 * time.Millisecond},
		})
	}
	if err := control.Serve(ctx, l, f); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (f *fakeTunnel) Info() control.Info {
	return control.Info{Name: f.name, Device: "cleat0", File: "/etc/cleat/" + f.name + ".yaml", PID: os.Getpid(),
		Started: time.Now().Truncate(time.Hour), Form: spec.Auto, Scheduler: spec.Adaptive, Version: "test"}
}

func (f *fakeTunnel) Status() tunnel.Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	return tunnel.Status{Up: true, Form: tunnel.Native, Cipher: "AES-128-GCM", Rate: 100e6, Paths: slices.Clone(f.paths),
		Stats: tunnel.Stats{Read: 1000 * f.asked, ReadBytes: 1_000_000 * f.asked}}
}

// index returns the index of a path. It is called with mu held.
func (f *fakeTunnel) index(name string) (int, error) {
	i := slices.IndexFunc(f.paths, func(p tunnel.PathStatus) bool { return p.Name == name })
	if i < 0 {
		return 0, fmt.Errorf("path %q: %w", name, tunnel.ErrNoPath)
	}
	return i, nil
}

func (f *fakeTunnel) SetPath(name string, up bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	i, err := f.index(name)
	if err == nil {
		f.paths[i].Down = !up
	}
	return err
}

func (f *fakeTunnel) AddPath(p spec.Path) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.index(p.Name); err == nil {
		return fmt.Errorf("path %q: %w", p.Name, tunnel.ErrPathExists)
	}
	t := spec.Tunnel{Name: f.name, Device: "cleat0", Addresses: []netip.Prefix{netip.MustParsePrefix("10.9.0.1/30")},
		Settings: spec.Settings{Port: 4754, Scheduler: spec.Adaptive}}
	p, err := t.CheckPath(p)
	if err != nil {
		return err
	}
	f.paths = append(f.paths, tunnel.PathStatus{PathConfig: tunnel.PathConfig{Name: p.Name, Device: p.Device, Local: p.Local, Port: p.LocalPort,
		Remote: p.Remote, MaxRate: p.RateBitsPerSec, Weight: p.Weight, MTU: p.MTUBytes, Metered: p.Metered}})
	return nil
}

func (f *fakeTunnel) RemovePath(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	i, err := f.index(name)
	if err == nil {
		f.paths = slices.Delete(f.paths, i, i+1)
	}
	return err
}

func (f *fakeTunnel) Reload() (control.Reloaded, error) {
	switch text, err := os.ReadFile("reload"); {
	case err != nil:
		return control.Reloaded{}, fmt.Errorf("read tunnel file: %w", err)
	case string(text) == "refuse\n":
		return control.Reloaded{Changed: []string{"path sat added"}, Refused: []string{"name can't change from office to home without a restart: it is the tunnel's own"}}, nil
	case string(text) == "mistake\n":
		return control.Reloaded{}, &control.FileError{Findings: []spec.Finding{{File: "office.yaml", Line: 3, Column: 7, Severity: spec.Error, Message: "port 0: want 1…65535"}}}
	}
	return control.Reloaded{}, nil
}

func (f *fakeTunnel) Stop() { f.stop() }
