package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"cleat/overlay"
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
	all.wanted = map[string]tunnelEnd{"b": {device: device, text: []byte("name: " + device + "\n")}}
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

// TestTunnelsOfEarlierNode has a tunnel of an earlier node, which is not ended before it is known that nobody wants it.
func TestTunnelsOfEarlierNode(t *testing.T) {
	all := newTunnels(t.TempDir(), nil, t.Logf, func() {})
	file := all.path("cleat-tearlier.yaml")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	running.Go(func() { all.run(ctx) })
	for range 3 { // when run has taken the second, it has done what the first asks for
		all.kick <- struct{}{}
	}
	if _, err := os.Stat(file); err != nil {
		t.Fatalf("before set: %v", err)
	}
	all.set(ctx, overlay.State{})
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		_, err := os.Stat(file)
		if os.IsNotExist(err) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("after set: %v, want no file", err)
		}
	}
}

// TestAskAll has a tunnel that hangs and one that answers.
func TestAskAll(t *testing.T) {
	listen := func(device string) net.Listener {
		t.Helper()
		l, err := net.Listen("unix", fmt.Sprintf("@cleat-tunnel/%d/%s", os.Getuid(), device))
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	defer listen("cleat-thangs").Close()
	s := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"up":true}`) })}
	answers := listen("cleat-tanswers")
	go func() { _ = s.Serve(answers) }()
	defer s.Close()
	asked := make(chan map[string]tunnelState, 1)
	go func() {
		asked <- askAll(t.Context(), map[string]tunnelEnd{"a": {device: "cleat-thangs"}, "b": {device: "cleat-tanswers"}, "c": {device: "cleat-tnone"}})
	}()
	select {
	case got := <-asked:
		if got["a"].problem == "" || !got["b"].up || got["c"] != (tunnelState{}) || len(got) != 3 {
			t.Errorf("states are %#v", got)
		}
	case <-time.After(20 * time.Second):
		t.Error("it waits for the tunnel that hangs")
	}
}
