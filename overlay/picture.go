package overlay

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"cleat/overlay/control"
	"cleat/overlay/registry"
)

const (
	reportEvery  = time.Second     // how often hosts are asked at most, however many programs want to see a picture
	reportWithin = 2 * time.Second // of a host, before the picture is made without it
	reportsAsked = 16              // hosts asked at the same time
	maxTalks     = 2000            // in a picture
)

// reports are what hosts have reported. Hosts are only asked while somebody wants a picture.
type reports struct {
	mu  sync.Mutex // held while hosts are asked, so that many pictures cost one round
	all map[string]control.Report
	at  time.Time

	ownMu sync.Mutex // held while this host measures
	own   control.Report
}

// picture returns what this node knows, and what it and the other hosts report.
func (n *Node) picture(ctx context.Context, r *http.Request) (any, error) {
	if r.FormValue("own") != "" {
		return n.draw(n.votes(ctx), map[string]control.Report{n.settings.Host: n.report(ctx)}), nil
	}
	n.seen.mu.Lock()
	defer n.seen.mu.Unlock()
	if time.Since(n.seen.at) >= reportEvery {
		all := n.askReports(ctx)
		if err := ctx.Err(); err != nil {
			return nil, err // hosts did not answer because nobody waits any more
		}
		n.seen.all, n.seen.at = all, time.Now()
	}
	return n.draw(n.votes(ctx), n.seen.all), nil
}

// report returns what this host measures and what does not work here. It measures at most once in reportEvery.
func (n *Node) report(ctx context.Context) control.Report {
	n.seen.ownMu.Lock()
	defer n.seen.ownMu.Unlock()
	if time.Since(n.seen.own.At) < reportEvery {
		return n.seen.own
	}
	t, err := n.cfg.Dataplane.Traffic(ctx)
	n.mu.Lock()
	defer n.mu.Unlock()
	r := control.Report{At: time.Now(), Registry: n.answers}
	if err == nil {
		r.Traffic = &t
	} else {
		r.Problems = append(r.Problems, control.Problem{Text: "measure traffic: " + err.Error(), Since: r.At})
	}
	for _, about := range slices.Sorted(maps.Keys(n.problems)) {
		r.Problems = append(r.Problems, control.Problem{Text: n.problems[about], Since: n.problemSince[about]})
	}
	n.seen.own = r
	return r
}

// askReports returns the reports of all hosts. Of those that don't answer it returns the last one.
func (n *Node) askReports(ctx context.Context) map[string]control.Report {
	n.mu.Lock()
	hosts := slices.Collect(maps.Values(n.mirror.Hosts))
	alive := maps.Clone(n.mirror.alive)
	n.mu.Unlock()
	var mu sync.Mutex
	all := map[string]control.Report{n.settings.Host: n.report(ctx)}
	slots := make(chan struct{}, reportsAsked)
	var asking sync.WaitGroup
	for _, h := range hosts {
		if _, lives := alive[h.Name]; !lives || h.Name == n.settings.Host {
			if last, ok := n.seen.all[h.Name]; ok && h.Name != n.settings.Host {
				mu.Lock()
				all[h.Name] = silent(last, "it is not alive")
				mu.Unlock()
			}
			continue
		}
		slots <- struct{}{}
		asking.Go(func() {
			defer func() { <-slots }()
			r := n.askReport(ctx, h)
			mu.Lock()
			defer mu.Unlock()
			all[h.Name] = r
		})
	}
	asking.Wait()
	return all
}

func (n *Node) askReport(ctx context.Context, h registry.Host) control.Report {
	ctx, cancel := context.WithTimeout(ctx, reportWithin)
	defer cancel()
	answer, err := n.askHost(ctx, h, hostRequest{Report: true})
	switch {
	case err != nil:
		return silent(n.seen.all[h.Name], err.Error())
	case answer.Report == nil:
		return silent(n.seen.all[h.Name], fmt.Sprintf("host %s has an earlier version, which does not report", h.Name))
	}
	r := *answer.Report
	r.At = time.Now() // by this host's clock
	return r
}

// silent returns the last report of a host that does not answer any more.
func silent(last control.Report, why string) control.Report {
	if last.Error == "" {
		last.Since = time.Now()
	}
	last.Error = why
	return last
}

// draw returns the picture with members of the registry and reports.
func (n *Node) draw(members []string, all map[string]control.Report) *control.Picture {
	p := &control.Picture{Status: n.status(members), At: time.Now(), Started: map[string]time.Time{}, Blocks: map[string]map[string][]netip.Prefix{},
		Containers: []control.Container{}, Reports: all, Talks: []control.Talk{}}
	n.mu.Lock()
	defer n.mu.Unlock()
	for host, a := range n.mirror.alive {
		p.Started[host] = a.Since
	}
	ends := map[netip.Addr]control.End{}
	for _, net := range slices.Sorted(maps.Keys(n.mirror.Networks)) {
		p.Blocks[net] = map[string][]netip.Prefix{}
		for _, b := range n.mirror.Blocks[net] {
			p.Blocks[net][b.Host] = append(p.Blocks[net][b.Host], b.Prefix)
		}
		for _, its := range p.Blocks[net] {
			slices.SortFunc(its, comparePrefixes)
		}
		for _, host := range slices.Sorted(maps.Keys(n.mirror.Hosts)) {
			for _, e := range n.mirror.endpoints(endpointsOf{net, host}) {
				p.Containers = append(p.Containers, containerOf(e))
				for _, a := range e.Addresses {
					ends[a] = control.End{Network: net, Host: host, ID: e.ID}
				}
			}
		}
	}
	p.Talks = talks(all, func(a netip.Addr) control.End { return endOf(a, ends, p.Blocks) })
	return p
}

func containerOf(e registry.Endpoint) control.Container {
	c := control.Container{Network: e.Network, Host: e.Host, ID: e.ID, Container: e.Container, Names: e.Names, Addresses: e.Addresses}
	for _, p := range e.Ports {
		c.Ports = append(c.Ports, portText(p))
	}
	return c
}

// portText returns a published port as text: where, and which of the container's, e.g. "192.0.2.1:8080 → 80/tcp".
func portText(p registry.Port) string {
	last := func(first uint16) string {
		if p.Count > 1 {
			return fmt.Sprintf("%d-%d", first, first+p.Count-1)
		}
		return fmt.Sprint(first)
	}
	where := last(p.HostPort)
	if p.HostAddr.Is6() {
		where = fmt.Sprintf("[%s]:%s", p.HostAddr, where)
	} else if p.HostAddr.IsValid() {
		where = fmt.Sprintf("%s:%s", p.HostAddr, where)
	}
	text := fmt.Sprintf("%s → %s/%s", where, last(p.Port), p.Protocol)
	if p.All {
		text += " on all hosts"
	}
	return text
}

// endOf returns what has an address: a container, or else the host in whose block it is, which has some itself.
func endOf(a netip.Addr, containers map[netip.Addr]control.End, blocks map[string]map[string][]netip.Prefix) control.End {
	if e, ok := containers[a]; ok || !a.IsValid() {
		return e
	}
	for net, hosts := range blocks {
		for host, its := range hosts {
			if slices.ContainsFunc(its, func(p netip.Prefix) bool { return p.Contains(a) }) {
				return control.End{Network: net, Host: host}
			}
		}
	}
	return control.End{}
}

// talks joins the flows of all reports. Both hosts of a flow report it. The client's counts, unless only the other
// one has counted bytes: always the same one, or its counters would jump. Of flows from or to outside only the host
// of the container has seen all.
func talks(all map[string]control.Report, end func(netip.Addr) control.End) []control.Talk {
	type key struct {
		from, to netip.Addr
		protocol string
		port     uint16
	}
	best := map[key]control.Talk{}
	for _, host := range slices.Sorted(maps.Keys(all)) {
		r := all[host]
		if r.Error != "" || r.Traffic == nil {
			continue
		}
		for _, f := range r.Traffic.Flows {
			t := control.Talk{From: end(f.From), To: end(f.To), Protocol: f.Protocol, Port: f.Port, Volume: f.Volume, By: host}
			inside := f.From.IsValid() && f.To.IsValid()
			if !inside && t.From.Host != host && t.To.Host != host {
				continue
			}
			k := key{f.From, f.To, f.Protocol, f.Port}
			if old, ok := best[k]; !ok || better(t, old) {
				best[k] = t
			}
		}
	}
	list := slices.SortedFunc(maps.Values(best), compareTalks)
	return list[:min(len(list), maxTalks)]
}

func better(t, old control.Talk) bool {
	if counted := t.Requests+t.Answers > 0; counted != (old.Requests+old.Answers > 0) {
		return counted
	}
	return t.By == t.From.Host
}

func compareTalks(a, b control.Talk) int {
	return cmp.Or(cmp.Compare(b.Requests+b.Answers, a.Requests+a.Answers), cmp.Compare(b.Connections, a.Connections),
		cmp.Compare(a.From.Host+"/"+a.From.ID, b.From.Host+"/"+b.From.ID), cmp.Compare(a.To.Host+"/"+a.To.ID, b.To.Host+"/"+b.To.ID),
		cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
}
