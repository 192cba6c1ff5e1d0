package main_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"testing"
	"time"

	"cleat/overlay/control"
)

// idleFor is how long the cluster is watched while nothing changes.
const idleFor = 5 * time.Second

// idle measures what the registry and a host do while nothing changes.
func (s *simulation) idle(members []*host) {
	settle := time.NewTimer(idleFor)
	<-settle.C
	for _, h := range members {
		s.c.eventually("host "+h.name+" has a member", func() error { _, err := os.Stat(filepath.Join(control.Dir(h.state), "etcd.socket")); return err })
	}
	before, cpu := s.received(members), processorTime(s.t, members[0].pid())
	client := s.c.hosts[5]
	clientCPU := processorTime(s.t, client.pid())
	timer := time.NewTimer(idleFor)
	<-timer.C
	hosts := float64(len(s.hosts) + len(s.c.hosts))
	s.t.Logf("idle: the registry gets %.2f messages a second and host; its first member uses %.1f %% of a processor, host %s %.1f %%",
		(s.received(members)-before)/idleFor.Seconds()/hosts, (processorTime(s.t, members[0].pid())-cpu).Seconds()/idleFor.Seconds()*100,
		client.name, (processorTime(s.t, client.pid())-clientCPU).Seconds()/idleFor.Seconds()*100)
}

// metric returns the sum of a metric of etcd on a host.
func (s *simulation) metric(h *host, name string) (sum float64) {
	c := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(control.Dir(h.state), "etcd.socket"))
	}}}
	defer c.CloseIdleConnections()
	answer, err := c.Get("http://etcd/metrics")
	must(s.t, err)
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) == 2 && (fields[0] == name || strings.HasPrefix(fields[0], name+"{")) {
			v, err := strconv.ParseFloat(fields[1], 64)
			must(s.t, err)
			sum += v
		}
	}
	return sum
}

// received returns how many messages of clients the members have received.
func (s *simulation) received(members []*host) (sum float64) {
	for _, h := range members {
		sum += s.metric(h, "grpc_server_msg_received_total")
	}
	return sum
}

// profile writes a profile of this process's processor time, until the returned function is called.
func (s *simulation) profile() (stop func()) {
	path := os.Getenv(profileEnv)
	if path == "" {
		return func() {}
	}
	f, err := os.Create(path)
	must(s.t, err)
	must(s.t, pprof.StartCPUProfile(f))
	return func() {
		pprof.StopCPUProfile()
		f.Close()
	}
}

// memory reports what a host costs.
func (s *simulation) memory() {
	resting := time.NewTimer(time.Duration(setting(s.t, restEnv, 0)) * time.Second)
	<-resting.C
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	s.t.Logf("memory of a simulated host: %.2f MiB of heap, %.0f goroutines", float64(m.HeapAlloc)/float64(len(s.hosts))/(1<<20), float64(runtime.NumGoroutine())/float64(len(s.hosts)))
	if path := os.Getenv(profileEnv); path != "" {
		f, err := os.Create(path + ".heap")
		must(s.t, err)
		defer f.Close()
		must(s.t, pprof.WriteHeapProfile(f))
	}
	client := s.c.hosts[5]
	s.t.Logf("memory of cleat-node on host %s, without a member: %s", client.name, residentMemory(s.t, client.pid()))
	s.t.Logf("memory of cleat-node on host a, with a member: %s", residentMemory(s.t, s.c.hosts[0].pid()))
	s.t.Logf("database of the registry: %.1f MiB, %.1f in use", s.metric(s.c.hosts[0], "etcd_mvcc_db_total_size_in_bytes")/(1<<20), s.metric(s.c.hosts[0], "etcd_mvcc_db_total_size_in_use_in_bytes")/(1<<20))
}

// processorTime returns the processor time that a process has used.
func processorTime(t *testing.T, pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	must(t, err)
	_, rest, _ := strings.Cut(string(text), ") ")
	f := strings.Fields(rest)
	const userTicks, perSecond = 11, 100 // field 14 of proc(5); USER_HZ
	user, err := strconv.Atoi(f[userTicks])
	must(t, err)
	system, err := strconv.Atoi(f[userTicks+1])
	must(t, err)
	return time.Duration(user+system) * time.Second / perSecond
}

// residentMemory returns the memory of a process, as /proc has it.
func residentMemory(t *testing.T, pid int) string {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	defer f.Close()
	text, err := io.ReadAll(f)
	must(t, err)
	var parts []string
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		if key == "VmHWM" || key == "VmRSS" || key == "RssAnon" || key == "RssFile" {
			kb, err := strconv.Atoi(strings.Fields(value)[0])
			must(t, err)
			parts = append(parts, fmt.Sprintf("%s %.1f MiB", key, float64(kb)/1024))
		}
	}
	return strings.Join(parts, ", ")
}
