package main_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"cleat/network/span"
	"cleat/overlay/control"
)

// check is something that must hold.
type check struct {
	what string
	do   func() error
}

// failures runs checks, some at a time, and returns those that fail, with their errors.
func failures(all []check) (failed []check, err error) {
	const atOnce = 32 // they mostly wait
	slots := make(chan struct{}, atOnce)
	errs := make([]error, len(all))
	var running sync.WaitGroup
	for i, one := range all {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			if err := one.do(); err != nil {
				errs[i] = fmt.Errorf("%s: %w", one.what, err)
			}
		})
	}
	running.Wait()
	for i, e := range errs {
		if e != nil {
			failed = append(failed, all[i])
		}
	}
	return failed, errors.Join(errs...)
}

// mustHold fails the test unless checks hold now.
func (s *schedule) mustHold(all []check) {
	s.c.t.Helper()
	if _, err := failures(all); err != nil {
		s.c.t.Fatal(err)
	}
}

// await waits until checks have held, one after the other or at once. Then all must hold.
func (s *schedule) await(what string, all []check) {
	s.c.t.Helper()
	left := all
	s.c.eventually(what, func() (err error) {
		left, err = failures(left)
		return err
	})
}

// checkSafety checks what must hold whatever is broken, and reachability where nothing is.
func (s *schedule) checkSafety() {
	s.c.t.Helper()
	s.checkAddresses()
	s.checkPairs(40)
}

// checkPairs checks up to a number of pairs of containers.
func (s *schedule) checkPairs(most int) {
	s.c.t.Helper()
	all := s.pairs(false)
	s.r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	s.mustHold(all[:min(most, len(all))])
}

// checkAddresses checks that each container has its address, and no address is there twice.
func (s *schedule) checkAddresses() {
	s.c.t.Helper()
	owner := map[netip.Addr]*inmate{}
	for _, k := range s.containers {
		if o := owner[k.addr]; o != nil {
			s.c.t.Fatalf("%s on %s and %s on %s have the address %s", k.name, k.host.name, o.name, o.host.name, k.addr)
		}
		owner[k.addr] = k
		if got := k.addresses(); !slices.Equal(got, []netip.Addr{k.addr}) {
			s.c.t.Fatalf("%s on %s has the addresses %s, not %s", k.name, k.host.name, got, k.addr)
		}
	}
}

// addresses returns the IPv4 addresses that the container has, by its kernel.
func (k *container) addresses() (all []netip.Addr) {
	k.host.c.t.Helper()
	must(k.host.c.t, k.NS.Do(func() error {
		devices, err := net.InterfaceAddrs()
		for _, d := range devices {
			if p, err := netip.ParsePrefix(d.String()); err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() {
				all = append(all, p.Addr())
			}
		}
		return err
	}))
	return all
}

// certain reports whether packets from one container reach the host of the other one, and the other way.
func (s *schedule) certain(a, b *inmate) bool {
	if a.host == b.host {
		return !s.shaken[a.host]
	}
	if s.shaken[a.host] || s.shaken[b.host] || a.fresh || b.fresh {
		return false
	}
	return !slices.ContainsFunc(s.faults, func(f *fault) bool { return f.between(a.host, b.host) || f.between(b.host, a.host) })
}

// pairs returns checks for all pairs of containers: those that must reach each other, and those that must not. What
// may be either is left out. With only, the result has those that must.
func (s *schedule) pairs(only bool) (all []check) {
	for _, from := range s.containers {
		for _, to := range s.containers {
			if from == to {
				continue
			}
			may := permits(s.rules, from, to)
			unsure := slices.ContainsFunc(s.rulesThen, func(rules []string) bool { return permits(rules, from, to) != may })
			switch {
			case unsure || from.network.fresh || to.network.fresh:
			case may && s.certain(from, to):
				all = append(all, check{"reach", func() error { return from.answers(to) }})
			case may || only || s.shaken[from.host] || s.shaken[to.host]:
			case from.network == to.network && (from.fresh || to.fresh): // a rule about names that hosts may not know yet
			default:
				all = append(all, check{"isolation", func() error { return from.isKeptFrom(to) }})
			}
		}
	}
	return all
}

// answers is reaches with time for lost packets to be sent again.
func (k *inmate) answers(o *inmate) error {
	err := k.reaches(o.container)
	for again := time.Now().Add(5 * time.Second); err != nil && time.Now().Before(again); {
		err = k.reaches(o.container)
	}
	return err
}

// isKeptFrom returns an error if a container reaches another one.
func (k *inmate) isKeptFrom(o *inmate) error {
	const within = 150 * time.Millisecond
	if got, err := askWithin(k.NS, o.addr, within); err == nil {
		return fmt.Errorf("%s on %s reaches %s on %s: %q", k.name, k.host.name, o.name, o.host.name, got)
	}
	return nil
}

// finds returns an error unless a container finds another one by its name.
func (k *inmate) finds(o *inmate) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var got []string
	err := k.NS.Do(func() (err error) {
		got, err = k.resolver().LookupHost(ctx, o.name+"."+o.network.name+".")
		return err
	})
	if err == nil && !slices.Equal(got, []string{o.addr.String()}) {
		err = fmt.Errorf("%s", got)
	}
	if err != nil {
		return fmt.Errorf("%s on %s looks up %s on %s, which has %s: %w", k.name, k.host.name, o.name, o.host.name, o.addr, err)
	}
	return nil
}

func (k *inmate) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (c net.Conn, err error) {
		err = k.NS.Do(func() error {
			c, err = net.DialTimeout("udp", netip.AddrPortFrom(k.network.gateway(), 53).String(), time.Second)
			return err
		})
		return c, err
	}}
}

// settle waits until all hosts agree after the last fault, and checks all.
func (s *schedule) settle() {
	s.c.t.Helper()
	sick := !s.whole()
	why := s.steps[max(0, len(s.steps)-1):]
	began := time.Now()
	s.awaitNetworks()
	var all []check
	for _, h := range s.c.hosts {
		all = append(all, check{"host " + h.name, func() error { return s.isWell(h) }})
	}
	clear(s.shaken)
	s.fresh(false)
	s.rulesThen = nil
	all = append(all, s.pairs(true)...)
	for _, k := range s.containers {
		for _, o := range s.containers {
			if k.network == o.network {
				all = append(all, check{"name", func() error { return k.finds(o) }})
			}
		}
	}
	s.await("all reach and find each other again", all)
	reached := time.Since(began)
	all = nil
	for _, h := range s.c.hosts {
		all = append(all, check{"host " + h.name, func() error { return s.agrees(h) }})
	}
	for _, k := range s.gone {
		all = append(all, check{"a link", func() error { return k.isGone() }})
	}
	s.await("all hosts agree", all)
	s.gone = nil
	clear(s.moved)
	defer func() { s.damaged = false }()
	if sick || len(why) > 0 && strings.Contains(why[0], "healed") {
		s.healing = append(s.healing, healing{strings.TrimSpace(strings.Join(why, "")), s.damaged, reached, time.Since(began)})
		s.note("all is whole after %.2f s, seen after %.2f s", reached.Seconds(), time.Since(began).Seconds())
		s.checkPairs(len(s.containers) * len(s.containers))
	}
}

// fresh sets that containers and networks may be unknown to other hosts, or not.
func (s *schedule) fresh(are bool) {
	for _, k := range s.containers {
		k.fresh = are
	}
	for _, n := range s.networks {
		n.fresh = are
	}
}

// isGone returns an error if a container that was disconnected has an address.
func (k *inmate) isGone() error {
	if got := k.addresses(); len(got) > 0 {
		return fmt.Errorf("%s on %s was disconnected and has %s", k.name, k.host.name, got)
	}
	return nil
}

// awaitNetworks waits until all hosts have the same networks. What commands that failed have done shows then.
func (s *schedule) awaitNetworks() {
	s.c.t.Helper()
	var have []string
	s.c.eventually("hosts agree on networks", func() error {
		for i, h := range s.c.hosts {
			st, err := h.status()
			if err != nil {
				return err
			}
			var its []string
			for _, n := range st.Networks {
				if its = append(its, n.Name); len(n.Blocks) == 0 {
					return fmt.Errorf("host %s has no block of %s", h.name, n.Name)
				}
			}
			if i > 0 && !slices.Equal(its, have) || !st.Registry.Answers {
				return fmt.Errorf("host %s has the networks %s, and another one %s; the registry answers it: %v", h.name, its, have, st.Registry.Answers)
			}
			have = its
		}
		for _, n := range s.networks {
			if !s.unsureNets[n.name] && !slices.Contains(have, n.name) {
				return fmt.Errorf("network %s is gone", n.name)
			}
		}
		return nil
	})
	for name := range s.unsureNets {
		i := slices.IndexFunc(s.networks, func(n *spanned) bool { return n.name == name })
		exists := slices.Contains(have, name)
		switch {
		case exists && i < 0:
			s.networks = append(s.networks, &spanned{name: name, subnet: temporary(name)})
		case !exists && i >= 0:
			s.forget(s.networks[i])
		}
		s.note("network %s exists: %v", name, exists)
	}
	clear(s.unsureNets)
}

// isWell returns an error unless a host sees all others.
func (s *schedule) isWell(h *host) error {
	st, err := h.status()
	if err != nil {
		return err
	}
	if !st.Registry.Answers || len(st.Hosts) != len(s.c.hosts) {
		return fmt.Errorf("the registry answers: %v; it has %d hosts", st.Registry.Answers, len(st.Hosts))
	}
	for _, o := range st.Hosts {
		i := slices.IndexFunc(s.c.hosts, func(h *host) bool { return h.name == o.Name })
		if !o.Alive || o.Address != s.c.hosts[i].addr {
			return fmt.Errorf("it sees %s at %s, alive %v", o.Name, o.Address, o.Alive)
		}
	}
	return nil
}

// agrees returns an error unless a host knows what was done, and its kernel has it.
func (s *schedule) agrees(h *host) error {
	p, err := control.New(h.state).Picture(s.c.t.Context(), true)
	if err != nil {
		return err
	}
	problems := slices.DeleteFunc(p.Problems, func(text string) bool { // these stay until the container is connected again
		return slices.ContainsFunc(s.cut, func(k *inmate) bool { return strings.Contains(text, k.path+" was disconnected from network") })
	})
	if len(problems) > 0 {
		return fmt.Errorf("problems: %s", problems)
	}
	var want, have []string
	for _, k := range s.containers {
		want = append(want, fmt.Sprintf("%s on %s of %s at %s", k.name, k.host.name, k.network.name, k.addr))
	}
	for _, k := range p.Containers {
		have = append(have, fmt.Sprintf("%s on %s of %s at %s", k.Names[len(k.Names)-1], k.Host, k.Network, k.Addresses[0]))
	}
	if err := differ("containers", want, have); err != nil {
		return err
	}
	if err := s.hasRoutes(h, p); err != nil {
		return err
	}
	if out, err := h.run(s.c.t.Context(), "cleat", "net", "check"); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// differ returns an error unless two lists have the same.
func differ(what string, want, have []string) error {
	slices.Sort(want)
	slices.Sort(have)
	missing := slices.DeleteFunc(slices.Clone(want), func(one string) bool { return slices.Contains(have, one) })
	extra := slices.DeleteFunc(slices.Clone(have), func(one string) bool { return slices.Contains(want, one) })
	if len(missing)+len(extra) > 0 || len(want) != len(have) {
		return fmt.Errorf("%s: missing %q, too much %q", what, missing, extra)
	}
	return nil
}

// hasRoutes returns an error unless the kernel has a way to each block of other hosts, and no other ones.
func (s *schedule) hasRoutes(h *host, p control.Picture) error {
	var routes, hops []string
	for _, n := range s.networks {
		routes = append(routes, "unreachable "+n.subnet.String())
	}
	for _, o := range s.c.hosts {
		if o == h {
			continue
		}
		hops = append(hops, o.addr.String())
		for _, blocks := range p.Blocks {
			for _, b := range blocks[o.name] {
				routes = append(routes, b.String()+" via "+o.addr.String())
			}
		}
	}
	var have []string
	for _, line := range lines(h, "ip -4 route show proto 193") {
		w := strings.Fields(line)
		switch {
		case w[0] == "unreachable":
			have = append(have, w[0]+" "+w[1])
		default:
			to := w[0]
			if !strings.Contains(to, "/") {
				to += "/32"
			}
			have = append(have, to+" "+w[1]+" "+w[2])
		}
	}
	err := differ("routes", routes, have)
	have = nil
	for _, line := range lines(h, "bridge fdb show dev "+span.Device) {
		have = append(have, strings.Fields(line)[2])
	}
	err = errors.Join(err, differ("forwarding entries", slices.Clone(hops), have))
	have = nil
	for _, line := range lines(h, "ip -4 neigh show dev "+span.Device+" nud permanent") {
		have = append(have, strings.Fields(line)[0])
	}
	return errors.Join(err, differ("neighbours", hops, have), isUp(h))
}

func isUp(h *host) error {
	out, err := h.shell("ip link show dev " + span.Device)
	if err == nil && !strings.Contains(out, ",UP") {
		err = errors.New("the device is down")
	}
	return err
}

// shell runs a script on the host.
func (h *host) shell(script string) (string, error) {
	var out []byte
	err := h.NS.Do(func() (err error) {
		out, err = exec.Command("sh", "-c", script).CombinedOutput()
		return err
	})
	return string(out), err
}

// lines returns the lines that a command prints on a host.
func lines(h *host, script string) (all []string) {
	out, err := h.shell(script)
	if err != nil {
		return []string{"? ? ? " + err.Error()}
	}
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); line != "" {
			all = append(all, line)
		}
	}
	return all
}

// checkLogs fails the test if a program has crashed.
func (s *schedule) checkLogs() {
	for _, h := range s.c.hosts {
		for _, path := range []string{filepath.Join(control.Dir(h.state), "log"), filepath.Join(h.state, "keeper.log")} {
			text, err := os.ReadFile(path)
			if err != nil {
				continue
			}
			for _, sign := range []string{"panic:", "fatal error:", "DATA RACE"} {
				if strings.Contains(string(text), sign) {
					s.c.t.Errorf("%s has %q", path, sign)
				}
			}
		}
	}
}
