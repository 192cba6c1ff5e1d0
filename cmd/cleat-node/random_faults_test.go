package main_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"cleat/network/span"

	"golang.org/x/sys/unix"
)

// fault is something that is broken.
type fault struct {
	what    string
	until   time.Time
	heal    func()
	rules   string                    // of the switch, for nft
	between func(from, to *host) bool // whether packets from one host to another may be lost
}

func never(_, _ *host) bool { return false }

// of returns what says that packets from and to hosts may be lost.
func of(hosts ...*host) func(from, to *host) bool {
	return func(from, to *host) bool {
		return from != to && (slices.Contains(hosts, from) || slices.Contains(hosts, to))
	}
}

// inject begins a fault, if there are not too many already.
func (s *schedule) inject(f *fault, begin func()) {
	if len(s.faults) >= mostFaults {
		return
	}
	least := s.longest / 20
	f.until = time.Now().Add(least + time.Duration(s.r.Int64N(int64(s.longest-least))))
	s.note("%s, for %.1f s", f.what, time.Until(f.until).Seconds())
	s.faults = append(s.faults, f)
	if begin != nil {
		begin()
	}
	s.filter()
}

// heal ends a fault.
func (s *schedule) heal(f *fault) {
	s.note("healed: %s", f.what)
	s.faults = slices.DeleteFunc(s.faults, func(o *fault) bool { return o == f })
	s.filter()
	if f.heal != nil {
		f.heal()
	}
}

func (s *schedule) healAll() {
	for len(s.faults) > 0 {
		s.heal(s.faults[0])
	}
}

// filter makes the switch drop what the faults say.
func (s *schedule) filter() {
	s.c.t.Helper()
	var rules []string
	for _, f := range s.faults {
		if f.rules != "" {
			rules = append(rules, f.rules)
		}
	}
	text := "table bridge faults\ndelete table bridge faults\n"
	if len(rules) > 0 {
		text += "table bridge faults { chain c { type filter hook forward priority 0;\n" + strings.Join(rules, "\n") + "\n}; }\n"
	}
	must(s.c.t, s.c.sw.NS.Do(func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w\n%s\n%s", err, out, text)
		}
		return nil
	}))
}

// afflicts reports whether a fault of a kind is there for a host.
func (s *schedule) afflicts(what string) bool {
	return slices.ContainsFunc(s.faults, func(f *fault) bool { return f.what == what })
}

func (s *schedule) killNode() {
	if h := s.hostWithNode(); h != nil {
		s.kill(h)
	}
}

func (s *schedule) kill(h *host) {
	f := &fault{what: "the node of " + h.name + " is killed", between: never, heal: func() {
		h.node("up")
		delete(s.down, h)
	}}
	s.inject(f, func() {
		h.kill()
		s.down[h] = true
	})
}

// killMajority kills the nodes of most members of the registry.
func (s *schedule) killMajority() {
	h := s.hostWithNode()
	if h == nil || len(s.faults) > 0 {
		return
	}
	st, err := h.status()
	must(s.c.t, err)
	members := slices.Clone(st.Registry.Members)
	s.r.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	for _, name := range members[:len(members)/2+1] {
		s.kill(s.c.hosts[slices.IndexFunc(s.c.hosts, func(h *host) bool { return h.name == name })])
	}
}

// killKeeper kills a keeper. Nobody starts it again but the next command, and the host's node.
func (s *schedule) killKeeper() {
	h := s.anyHost()
	pid := h.keeper()
	if pid == 0 {
		return
	}
	s.note("the keeper of %s is killed", h.name)
	must(s.c.t, unix.Kill(pid, unix.SIGKILL))
}

// keeper returns the process id of the host's keeper; 0 if there is none.
func (h *host) keeper() int {
	id, err := h.NS.ID()
	must(h.c.t, err)
	entries, err := os.ReadDir("/proc")
	must(h.c.t, err)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		var st unix.Stat_t
		if err != nil || unix.Stat("/proc/"+e.Name()+"/ns/net", &st) != nil || st.Ino != id {
			continue
		}
		line, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if args := strings.Split(string(line), "\x00"); len(args) > 1 && strings.HasSuffix(args[0], "/cleat") && args[1] == "keep" {
			return pid
		}
	}
	return 0
}

func (s *schedule) unplug() {
	h := s.anyHost()
	what := h.name + " is unplugged"
	if s.afflicts(what) {
		return
	}
	s.inject(&fault{what: what, between: of(h), heal: h.plug}, h.unplug)
}

// ports returns names of ports of the switch, for nft.
func ports(hosts []*host) string {
	var all []string
	for _, h := range hosts {
		all = append(all, h.port)
	}
	return "{ " + strings.Join(all, ", ") + " }"
}

// partition cuts the hosts into two parts.
func (s *schedule) partition() {
	all := slices.Clone(s.c.hosts)
	s.r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	n := 1 + s.r.IntN(len(all)-1)
	one, two := all[:n], all[n:]
	var names []string
	for _, h := range one {
		names = append(names, h.name)
	}
	s.inject(&fault{what: "partition: " + strings.Join(names, " ") + " are cut off from the others",
		rules:   fmt.Sprintf("iifname %s oifname %s drop\niifname %[2]s oifname %[1]s drop", ports(one), ports(two)),
		between: func(from, to *host) bool { return slices.Contains(one, from) != slices.Contains(one, to) }}, nil)
}

// oneWay loses all packets from a host to another one, or to all.
func (s *schedule) oneWay() {
	from, to := s.anyHost(), s.c.hosts
	if s.r.IntN(2) == 0 {
		to = []*host{s.anyHost()}
	}
	what := "packets of " + from.name + " to all are lost"
	if len(to) == 1 {
		what = "packets of " + from.name + " to " + to[0].name + " are lost"
	}
	s.inject(&fault{what: what, rules: fmt.Sprintf("iifname %s oifname %s drop", from.port, ports(to)),
		between: func(a, b *host) bool {
			return a != b && (a == from && slices.Contains(to, b) || b == from && slices.Contains(to, a))
		}}, nil)
}

// lose loses some packets from and to a host.
func (s *schedule) lose() {
	h, share := s.anyHost(), 5+s.r.IntN(50)
	s.inject(&fault{what: fmt.Sprintf("%d %% of packets from and to %s are lost", share, h.name), between: of(h),
		rules: fmt.Sprintf("iifname %s numgen random mod 100 < %d drop\noifname %[1]s numgen random mod 100 < %[2]d drop", h.port, share)}, nil)
}

// slow makes packets to a host wait in a queue.
func (s *schedule) slow() {
	h := s.anyHost()
	what := h.name + " has a slow link"
	if s.afflicts(what) {
		return
	}
	s.inject(&fault{what: what, between: of(h), heal: func() { s.c.sh(s.c.sw.Node, "tc qdisc del dev "+h.port+" root") }},
		func() {
			s.c.sh(s.c.sw.Node, "tc qdisc replace dev "+h.port+" root tbf rate 300kbit burst 4kb latency 600ms")
		})
}

// damages are what others do to a host's kernel by mistake.
var damages = []struct{ what, script string }{
	{"routes are flushed", "ip route flush proto 193"},
	{"a route is deleted", "ip route show proto 193 | grep -v unreachable | head -n1 | cut -d' ' -f1 | xargs -r ip route del"},
	{"the device is deleted", "ip link del " + span.Device},
	{"the device is down", "ip link set " + span.Device + " down"},
	{"neighbours are flushed", "ip neigh flush dev " + span.Device + " nud permanent"},
	{"forwarding entries are deleted", "bridge fdb show dev " + span.Device + " | while read mac dst ip rest; do bridge fdb del $mac dev " + span.Device + " dst $ip; done"},
	// Kernels that know owners of tables refuse this one: the keeper owns the tables.
	{"its rules are flushed", "nft list tables | grep cleat-net | while read t f n; do nft delete table $f $n || true; done"},
	{"a network's device is deleted", "ip link del cl-web"},
}

// damage breaks a host's tables. The host repairs them by itself.
func (s *schedule) damage() {
	h := s.anyHost()
	d := pick(s, damages)
	if s.down[h] || len(s.faults) >= mostFaults {
		return
	}
	s.note("damage on %s: %s", h.name, d.what)
	s.shaken[h], s.damaged = true, true
	_ = h.NS.Do(func() error { return exec.Command("sh", "-c", d.script).Run() }) // it may be gone already
}

// mostMoved bounds the hosts that get other addresses until all is whole again: a host that finds none of the others
// where it was is lost, and nothing can help it.
const mostMoved = 2

// changeAddress gives a host another address.
func (s *schedule) changeAddress() {
	h := s.anyHost()
	if len(s.moved) >= mostMoved && !s.moved[h] {
		return
	}
	s.moved[h] = true
	s.addresses++
	to := netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + s.addresses%200)})
	s.note("%s has the address %s now", h.name, to)
	s.shaken[h] = true
	h.move(to)
}

// removeHost removes a host from a cluster that is whole, and lets it join again.
func (s *schedule) removeHost() {
	t := s.c.t
	s.healAll()
	s.settle()
	h, by := s.anyHost(), s.anyHost()
	if h == by {
		return
	}
	lost := s.r.IntN(2) == 0
	s.note("%s removes %s, %s", by.name, h.name, map[bool]string{true: "which is unplugged", false: "which is well"}[lost])
	if lost {
		h.unplug()
		s.c.eventually("others notice", func() error { return by.sees(h, false) })
	}
	s.c.eventually("removed", func() error { // the registry may need another leader first
		_, err := by.run(s.c.t.Context(), "cleat-node", "remove", h.name)
		return err
	})
	s.shaken[h] = true
	if lost {
		h.plug()
	}
	s.checkSafety()
	if s.r.IntN(2) == 0 {
		s.takeAddressOf(h, by)
	}
	h.knowsRemoved()
	s.note("%s joins again", h.name)
	h.down()
	s.c.eventually(h.name+" joins again", func() error {
		_, err := h.run(t.Context(), "cleat-node", "up", "--name", h.name, "--token", by.token())
		return err
	})
}

// takeAddressOf connects a container with an address that one of a removed host has.
func (s *schedule) takeAddressOf(removed, by *host) {
	i := slices.IndexFunc(s.containers, func(k *inmate) bool { return k.host == removed })
	if i < 0 || len(s.containers) >= mostContainers {
		return
	}
	k := s.containers[i]
	s.c.eventually("the addresses of a removed host are free", func() error {
		if s.connect(by, k.network, "--ip", k.addr.String()) == nil {
			return errors.New("they are not")
		}
		return nil
	})
	// The older one loses its address when its host joins again.
	s.lost(k)
	s.cut = append(s.cut, k)
}
