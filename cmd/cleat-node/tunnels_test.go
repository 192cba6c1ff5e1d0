package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestTunnelEnds has a tunnel that ends as soon as it is started, again and again. It is a problem, which is logged once.
func TestTunnelEnds(t *testing.T) {
	dir := t.TempDir()
	started := filepath.Join(dir, "started")
	script := fmt.Sprintf("#!/bin/sh\necho >> %s\nexit 3\n", started)
	if err := os.WriteFile(filepath.Join(dir, "cleat"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	var mu sync.Mutex
	var logged []string
	log := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		logged = append(logged, fmt.Sprintf(format, args...))
	}
	all := newTunnels(filepath.Join(dir, "tunnels"), nil, log, func() {})
	if _, err := all.publicKey(); err != nil {
		t.Fatal(err)
	}
	const device = "cleat-ttest"
	all.wanted["b"] = tunnelEnd{device: device, text: []byte("name: " + device + "\n")}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var running sync.WaitGroup
	running.Go(func() { all.run(ctx) })
	until := func(what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: not within 20 s", what)
			}
			signal(all.kick)
		}
	}
	until("started four times", func() bool {
		text, _ := os.ReadFile(started)
		return len(text) >= 4
	})
	until("a problem", func() bool { _, s := all.to("b"); return strings.Contains(s.problem, "exit status 3") })
	cancel()
	running.Wait()
	mu.Lock()
	defer mu.Unlock()
	if len(logged) != 1 || !strings.Contains(logged[0], "exit status 3") || !strings.Contains(logged[0], device+".log") {
		t.Errorf("logged %q, want one line with the reason and the path of the log", logged)
	}
	if err := all.remove(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(all.dir); !os.IsNotExist(err) {
		t.Errorf("after remove: %v", err)
	}
}
