package main_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The environment variables of TestRandomFaults: the seed of a schedule to repeat, and how long it lasts.
const (
	seedEnv     = "CLEAT_TEST_SEED"
	durationEnv = "CLEAT_TEST_DURATION"
)

const (
	randomFaultsFor = 20 * time.Second // without durationEnv
	randomHosts     = 5
	mostContainers  = 14
	mostFaults      = 3 // at the same time
	// longestFault is that of a schedule of minutes. Those of a shorter one are a fifth of it at most.
	longestFault = 20 * time.Second
)

// TestRandomFaults breaks and changes a cluster at random, and checks after each step that
//
//   - no address is there twice,
//   - containers that may not reach each other don't, whatever is broken,
//   - those that may do, unless something is broken between their hosts,
//
// and each time when all is whole again, that all hosts come to agree: with each other, with what was done, and with
// their kernels, and that all containers reach and find each other that may.
//
//	CLEAT_TEST_DURATION=1h go test ./cmd/cleat-node -run 'TestRandomFaults$' -v -timeout 2h
//	CLEAT_TEST_SEED=7 …
//
// A seed repeats the steps, but not the time that each takes.
func TestRandomFaults(t *testing.T) {
	t.Parallel()
	duration, seed := randomFaultsFor, time.Now().UnixNano()
	if text := os.Getenv(durationEnv); text != "" {
		d, err := time.ParseDuration(text)
		must(t, err)
		duration = d
	}
	if text := os.Getenv(seedEnv); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		must(t, err)
		seed = n
	}
	t.Logf("%s=%d %s=%s", seedEnv, seed, durationEnv, duration)
	s := newSchedule(newCluster(t, randomHosts), seed, min(longestFault, duration/5))
	defer s.report()
	s.begin()
	for end := time.Now().Add(duration); time.Now().Before(end) && !t.Failed(); {
		s.step()
	}
	s.note("the end")
	s.healAll()
	s.settle()
	s.checkLogs()
}

// schedule is what happens to a cluster.
type schedule struct {
	c       *cluster
	r       *rand.Rand
	began   time.Time
	longest time.Duration // of a fault
	steps   []string
	counts  map[string]int
	healing []healing

	networks   []*spanned
	unsureNets map[string]bool // a command failed, and may have been carried out yet
	containers []*inmate
	gone       []*inmate // disconnected since all was whole
	cut        []*inmate // disconnected by their host, because others have their addresses
	named      int       // containers so far
	rules      []string  // of network shop
	rulesThen  [][]string
	faults     []*fault
	shaken     map[*host]bool // its ways are not predicted until all is whole again
	damaged    bool           // a kernel's tables were, since all was whole
	moved      map[*host]bool // it has another address since all was whole
	down       map[*host]bool // its node was killed
	addresses  int            // of hosts so far
}

// spanned is a network.
type spanned struct {
	name     string
	subnet   netip.Prefix
	internal bool
	fresh    bool // created since all was whole
}

func (n *spanned) gateway() netip.Addr { return n.subnet.Addr().Next() }

// inmate is a container on a network.
type inmate struct {
	*container
	network *spanned
	fresh   bool // other hosts may not know it yet
}

// healing is how long it took until all was well after the last fault was over.
type healing struct {
	after          string
	damaged        bool // a kernel's tables were damaged
	reached, whole time.Duration
}

func newSchedule(c *cluster, seed int64, longest time.Duration) *schedule {
	return &schedule{c: c, r: rand.New(rand.NewPCG(uint64(seed), 0)), began: time.Now(), longest: longest, counts: map[string]int{},
		unsureNets: map[string]bool{}, shaken: map[*host]bool{}, moved: map[*host]bool{}, down: map[*host]bool{}, addresses: 100}
}

// note remembers what happens.
func (s *schedule) note(format string, args ...any) {
	text := fmt.Sprintf("%7.2f s  %s", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
	s.steps = append(s.steps, text)
	if os.Getenv(durationEnv) != "" {
		fmt.Fprintln(os.Stderr, text)
	}
}

// report prints what has happened.
func (s *schedule) report() {
	t := s.c.t
	t.Helper()
	if t.Failed() {
		const last = 60
		t.Logf("the last steps:\n%s", strings.Join(s.steps[max(0, len(s.steps)-last):], "\n"))
	}
	t.Logf("%d steps in %s: %v", len(s.steps), time.Since(s.began).Round(time.Second), s.counts)
	for _, damaged := range []bool{false, true} {
		some := slices.DeleteFunc(slices.Clone(s.healing), func(h healing) bool { return h.damaged != damaged })
		after := map[bool]string{false: "faults", true: "faults and damages of kernels' tables"}[damaged]
		if len(some) > 0 {
			t.Logf("after %s, all reach and find each other: %s", after, figures(some, func(h healing) time.Duration { return h.reached }))
			t.Logf("after %s, kernels and registry agree: %s", after, figures(some, func(h healing) time.Duration { return h.whole }))
		}
	}
}

// figures returns a distribution of times as text.
func figures(all []healing, of func(healing) time.Duration) string {
	slices.SortFunc(all, func(a, b healing) int { return cmp.Compare(of(a), of(b)) })
	at := func(share float64) string {
		return fmt.Sprintf("%.2f s", of(all[min(len(all)-1, int(share*float64(len(all))))]).Seconds())
	}
	return fmt.Sprintf("median %s, 99 %% %s, longest %s, n = %d; the longest: %s", at(0.5), at(0.99), at(1), len(all), all[len(all)-1].after)
}

// begin makes the cluster, its networks and some containers.
func (s *schedule) begin() {
	s.c.t.Helper()
	s.c.up()
	s.c.settled(3)
	for _, n := range []*spanned{
		{name: "web", subnet: netip.MustParsePrefix("10.64.0.0/18")},
		{name: "inner", subnet: netip.MustParsePrefix("10.64.64.0/18"), internal: true},
		{name: "shop", subnet: netip.MustParsePrefix("10.64.128.0/18")},
	} {
		s.createNetwork(n)
	}
	s.awaitNetworks()
	for i, n := range []int{0, 0, 0, 1, 1, 2, 2, 2} {
		s.connect(s.c.hosts[i%randomHosts], s.networks[n])
	}
	s.settle()
}

// A deed is one kind of step, and how often it is chosen.
type deed struct {
	name   string
	weight int
	do     func(s *schedule)
}

// deeds are functions so that they can refer to the schedule's methods.
func deeds() []deed {
	return []deed{
		{"connect", 8, func(s *schedule) { s.connect(s.anyHost(), pick(s, s.networks)) }},
		{"connect at an address", 3, (*schedule).connectAt},
		{"disconnect", 5, (*schedule).disconnectAny},
		{"move a container", 6, (*schedule).move},
		{"create a network", 2, (*schedule).createAny},
		{"remove a network", 2, (*schedule).removeAny},
		{"change a rule", 4, (*schedule).changeRule},
		{"kill a node", 6, (*schedule).killNode},
		{"kill members of the registry", 3, (*schedule).killMajority},
		{"kill a keeper", 3, (*schedule).killKeeper},
		{"unplug a host", 6, (*schedule).unplug},
		{"partition", 6, (*schedule).partition},
		{"lose packets one way", 4, (*schedule).oneWay},
		{"lose some packets", 2, (*schedule).lose},
		{"slow a host", 2, (*schedule).slow},
		{"damage a kernel's tables", 6, (*schedule).damage},
		{"change a host's address", 4, (*schedule).changeAddress},
		{"remove a host", 3, (*schedule).removeHost},
	}
}

// step does one step, and checks what must hold whatever is broken.
func (s *schedule) step() {
	s.c.t.Helper()
	now := time.Now()
	for _, f := range slices.Clone(s.faults) {
		if now.After(f.until) {
			s.heal(f)
		}
	}
	const often = 10 // one of so many steps ends all faults
	if s.r.IntN(often) == 0 {
		s.healAll()
	}
	if len(s.faults) == 0 {
		s.settle()
	}
	all := deeds()
	sum := 0
	for _, d := range all {
		sum += d.weight
	}
	n := s.r.IntN(sum)
	for _, d := range all {
		if n -= d.weight; n < 0 {
			s.counts[d.name]++
			d.do(s)
			break
		}
	}
	s.checkSafety()
}

func pick[T any](s *schedule, all []T) T { return all[s.r.IntN(len(all))] }

func (s *schedule) anyHost() *host { return pick(s, s.c.hosts) }

// hostWithNode returns a host whose node runs; nil if there is none.
func (s *schedule) hostWithNode() *host {
	all := slices.DeleteFunc(slices.Clone(s.c.hosts), func(h *host) bool { return s.down[h] })
	if len(all) == 0 {
		return nil
	}
	return pick(s, all)
}
