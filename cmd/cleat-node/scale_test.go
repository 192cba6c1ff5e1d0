package main_test

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

// hostsEnv is how many hosts TestManyHosts has; each has endpointsEnv containers, and the cluster the data plane
// planeEnv. Three inotify instances of a host count against fs.inotify.max_user_instances of the machine.
const (
	hostsEnv     = "CLEAT_TEST_HOSTS"
	endpointsEnv = "CLEAT_TEST_ENDPOINTS"
	planeEnv     = "CLEAT_TEST_DATAPLANE"
)

// TestManyHosts measures how long it takes until all hosts know what one of them has. It asserts no time.
func TestManyHosts(t *testing.T) {
	hosts, endpoints := setting(t, hostsEnv, 6), setting(t, endpointsEnv, 2)
	c := newCluster(t, hosts)
	c.hosts[0].node("up", "--name", c.hosts[0].name, "--address", c.hosts[0].addr.String(), "--dataplane", cmp.Or(os.Getenv(planeEnv), "auto"))
	token := c.hosts[0].token()
	var joins []time.Duration
	for _, h := range c.hosts[1:] {
		began := time.Now()
		h.node("up", "--name", h.name, "--token", token)
		joins = append(joins, time.Since(began))
	}
	report(t, "join", joins)
	c.hosts[0].cleat("net", "create", "web", "--span")
	began := time.Now()
	for _, h := range c.hosts {
		c.eventually("network on "+h.name, func() error {
			_, err := os.Stat(h.state + "/networks/web/network.json")
			return err
		})
	}
	t.Logf("network on all %d hosts after %s more", hosts, time.Since(began).Round(time.Millisecond))

	// One container on each host asks for the name of each new one.
	var asking []*container
	for _, h := range c.hosts {
		asking = append(asking, h.container("ask-"+h.name, "web"))
	}
	var connects, reached, known []time.Duration
	for range endpoints - 1 {
		for _, h := range c.hosts {
			k := h.newContainer(fmt.Sprintf("k%d-%s", len(known), h.name))
			k.serve()
			began := time.Now()
			k.connect("web")
			connected := time.Now()
			connects = append(connects, connected.Sub(began))
			var mu sync.Mutex
			var all sync.WaitGroup
			var slowestReach, slowestName time.Duration
			for _, a := range asking {
				all.Go(func() {
					if err := patiently(func() error { return a.reaches(k) }); err != nil {
						t.Error(err)
					}
					r := time.Since(connected)
					if err := patiently(func() error { return a.knows(k) }); err != nil {
						t.Error(err)
					}
					mu.Lock()
					defer mu.Unlock()
					slowestReach, slowestName = max(slowestReach, r), max(slowestName, time.Since(connected))
				})
			}
			if all.Wait(); t.Failed() {
				t.FailNow()
			}
			reached, known = append(reached, slowestReach), append(known, slowestName)
		}
	}
	report(t, "connect", connects)
	report(t, "reached from all hosts, after the command", reached)
	report(t, "known on all hosts, after the command", known)
	gone := c.hosts[len(c.hosts)-1]
	gone.unplug()
	began = time.Now()
	for _, h := range c.hosts[:len(c.hosts)-1] {
		c.eventually("notices", func() error { return h.sees(gone, false) })
	}
	t.Logf("a host's end known on all hosts after %s", time.Since(began).Round(time.Millisecond))
}

// patiently calls f until it returns nil, for some seconds.
func patiently(f func() error) error {
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		if err := f(); err == nil || time.Since(began) > 20*time.Second {
			return err
		}
	}
}

func setting(t *testing.T, name string, standard int) int {
	text := os.Getenv(name)
	if text == "" {
		return standard
	}
	n, err := strconv.Atoi(text)
	must(t, err)
	return n
}

func report(t *testing.T, what string, all []time.Duration) {
	slices.Sort(all)
	at := func(p int) time.Duration { return all[(len(all)-1)*p/100].Round(time.Millisecond) }
	t.Logf("%s: n %d, median %s, p99 %s, max %s", what, len(all), at(50), at(99), at(100))
}
