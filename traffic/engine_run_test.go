package traffic_test

import (
	"context"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"cleat/traffic"
)

// freeAddress returns an address at which nothing listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	return netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), freePort(t).Port()).String()
}

// Runs the real programs, where they are installed.
func TestForeignEngines(t *testing.T) {
	tests := []struct {
		engine traffic.Engine
		cfg    traffic.Config
	}{
		{traffic.EngineIperf3, traffic.Config{Work: traffic.TCP, Congestion: "reno"}},
		{traffic.EngineIperf3, traffic.Config{Work: traffic.UDP, BitsPerSecond: 1e6}},
		{traffic.EngineIperf3, traffic.Config{Work: traffic.TCP, Reverse: true}},
		{traffic.EngineIperf, traffic.Config{Work: traffic.TCP, Duration: 200 * time.Millisecond}},
		{traffic.EngineIperf, traffic.Config{Work: traffic.UDP, Duration: 200 * time.Millisecond, BitsPerSecond: 1e7, Streams: 2}},
	}
	for _, tt := range tests {
		t.Run(string(tt.engine)+" "+string(tt.cfg.Work), func(t *testing.T) {
			if _, err := exec.LookPath(string(tt.engine)); err != nil {
				t.Skipf("%s is not installed (Debian package %s)", tt.engine, tt.engine)
			}
			tt.cfg.Engine = tt.engine
			tt.cfg.Address = serving(t, traffic.ServeConfig{Engine: tt.engine, Listen: freeAddress(t)})
			r := run(t, tt.cfg)
			if r.BitsPerSecond == 0 || r.BytesReceived == 0 || r.DurationSeconds == 0 || r.CPU == nil || r.Engine != string(tt.engine) {
				t.Errorf("nothing was measured: %+v", r)
			}
		})
	}
}

func TestForeignEngineInterrupted(t *testing.T) {
	if _, err := exec.LookPath("iperf3"); err != nil {
		t.Skip("iperf3 is not installed (Debian package iperf3)")
	}
	address := serving(t, traffic.ServeConfig{Engine: traffic.EngineIperf3, Listen: freeAddress(t)})
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(200*time.Millisecond, cancel)
	if _, err := traffic.Run(ctx, traffic.Config{Work: traffic.TCP, Engine: traffic.EngineIperf3, Address: address, Duration: time.Hour}); err == nil {
		t.Error("no error though the client was killed")
	}
}

// Two servers at one port: the second reports that and exits.
func TestForeignServerFails(t *testing.T) {
	if _, err := exec.LookPath("iperf3"); err != nil {
		t.Skip("iperf3 is not installed (Debian package iperf3)")
	}
	address := serving(t, traffic.ServeConfig{Listen: "127.0.0.1:0"})
	if err := traffic.Serve(context.Background(), traffic.ServeConfig{Engine: traffic.EngineIperf3, Listen: address}); err == nil {
		t.Error("iperf3 served at a port that is taken")
	}
}
