package ui

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"cleat/overlay/control"
)

// fake is a Source whose traffic grows with time.
type fake struct {
	mu      sync.Mutex
	begun   time.Time
	picture func(age time.Duration) control.Picture
	err     error
}

func newFake(picture func(age time.Duration) control.Picture) *fake {
	return &fake{begun: time.Now(), picture: picture}
}

// Picture implements Source.
func (f *fake) Picture(context.Context, bool) (control.Picture, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return control.Picture{}, f.err
	}
	return f.picture(time.Since(f.begun)), nil
}

func (f *fake) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

// builder makes pictures.
type builder struct {
	control.Picture
	age time.Duration
}

func newBuilder(age time.Duration) *builder {
	b := &builder{age: age}
	b.At = time.Now()
	b.Cluster, b.Host = "9f3c1a", "a"
	b.Registry = control.RegistryStatus{Answers: true, Since: b.At.Add(-3 * time.Hour)}
	b.Started, b.Blocks, b.Reports = map[string]time.Time{}, map[string]map[string][]netip.Prefix{}, map[string]control.Report{}
	b.Containers, b.Talks = []control.Container{}, []control.Talk{}
	return b
}

func (b *builder) host(name string, counted bool) {
	i := len(b.Hosts)
	h := control.HostStatus{Name: name, Address: netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), Alive: true, Since: b.At.Add(-3 * time.Hour), Member: i < 3}
	if name != b.Host {
		h.By = "vxlan"
	}
	b.Hosts = append(b.Hosts, h)
	b.Started[name] = h.Since
	b.Reports[name] = control.Report{At: b.At, Registry: true, Traffic: &control.Traffic{At: b.At, Counted: counted, Links: []control.Link{}, Between: &control.Counters{}}}
}

func (b *builder) network(name, subnet string) {
	b.Networks = append(b.Networks, control.NetworkStatus{Name: name, Subnets: []netip.Prefix{netip.MustParsePrefix(subnet)}, Endpoints: map[string]int{}})
	b.Blocks[name] = map[string][]netip.Prefix{}
}

// container adds a container with a rate in bytes per second.
func (b *builder) container(network, host, name string, rate float64, ports ...string) {
	n := 0
	for n = range b.Networks {
		if b.Networks[n].Name == network {
			break
		}
	}
	h := 0
	for h = range b.Hosts {
		if b.Hosts[h].Name == host {
			break
		}
	}
	block := b.Networks[n].Subnets[0].Addr().As4()
	block[2] += byte(h / 4)
	block[3] = byte(h % 4 * 64)
	if len(b.Blocks[network][host]) == 0 {
		b.Blocks[network][host] = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4(block), 26)}
	}
	b.Networks[n].Endpoints[host]++
	block[3] += byte(b.Networks[n].Endpoints[host])
	id := network + "-" + name
	b.Containers = append(b.Containers, control.Container{Network: network, Host: host, ID: id, Container: "docker:" + name, Names: []string{name, "2f9c01d2ab34"}, Addresses: []netip.Addr{netip.AddrFrom4(block)}, Ports: ports})
	size := b.bytes(rate)
	t := b.Reports[host].Traffic
	t.Links = append(t.Links, control.Link{Network: network, ID: id, Counters: control.Counters{Received: size / 3, Sent: size - size/3}})
}

func (b *builder) bytes(rate float64) uint64 { return uint64(rate * b.age.Seconds()) }

// talk adds a talk between containers, given as host and name, with a rate in bytes per second; < 0: not counted.
// A container without a name is outside.
func (b *builder) talk(network, fromHost, from, toHost, to, protocol string, port uint16, connections int, rate float64) {
	end := func(host, name string) control.End {
		if name == "" {
			return control.End{}
		}
		return control.End{Network: network, Host: host, ID: network + "-" + name}
	}
	t := control.Talk{From: end(fromHost, from), To: end(toHost, to), Protocol: protocol, Port: port, By: toHost}
	t.Connections = connections
	if rate >= 0 {
		t.Counted, t.Requests, t.Answers = connections, b.bytes(rate)/10, b.bytes(rate)*9/10
	}
	b.Talks = append(b.Talks, t)
}

// small is a cluster of three hosts in which all is well.
func small(age time.Duration) control.Picture {
	b := newBuilder(age)
	for _, h := range []string{"a", "b", "c"} {
		b.host(h, true)
	}
	b.network("web", "10.64.0.0/18")
	b.network("data", "10.65.0.0/18")
	b.container("web", "a", "frontend", 9e6, "8080 → 80/tcp", "8443 → 443/tcp")
	b.container("web", "a", "cache", 4e5)
	b.container("web", "b", "api", 6.2e6)
	b.container("web", "b", "worker-1", 3e4)
	b.container("web", "c", "worker-2", 2e6)
	b.container("data", "b", "postgres-replica", 8e5)
	b.container("data", "c", "postgres", 3.1e6, "192.0.2.3:5432 → 5432/tcp")
	b.container("data", "c", "backup", 12)
	b.talk("web", "a", "frontend", "b", "api", "tcp", 8000, 14, 5.4e6)
	b.talk("web", "", "", "a", "frontend", "tcp", 80, 61, 3.6e6)
	b.talk("data", "b", "postgres-replica", "c", "postgres", "tcp", 5432, 2, 7.9e5)
	b.talk("web", "b", "api", "c", "worker-2", "tcp", 9000, 6, 1.9e6)
	b.talk("web", "a", "frontend", "a", "cache", "tcp", 6379, 3, 3.9e5)
	b.talk("web", "a", "cache", "c", "worker-2", "udp", 4000, 1, 240)
	b.talk("data", "c", "backup", "c", "postgres", "tcp", 5432, 1, 12)
	b.Reports["a"].Traffic.Between.Received, b.Reports["a"].Traffic.Between.Sent = b.bytes(4.9e6), b.bytes(5e5)
	return b.Picture
}

// broken is small with all that can be broken, and without counted bytes on one host.
func broken(age time.Duration) control.Picture {
	p := small(age)
	p.Registry = control.RegistryStatus{Since: p.At.Add(-95 * time.Second)}
	p.Hosts[1].Alive, p.Hosts[1].Since = false, p.At.Add(-4*time.Minute)
	r := p.Reports["c"]
	r.Error, r.Since = "connect to host at 192.0.2.3:7790: dial tcp 192.0.2.3:7790: i/o timeout", p.At.Add(-20*time.Second)
	p.Reports["c"] = r
	own := p.Reports["a"]
	own.Problems = []control.Problem{{Text: "set route to 10.64.1.0/26: network is unreachable", Since: p.At.Add(-70 * time.Minute)}}
	own.Traffic.Counted = false
	p.Reports["a"] = own
	p.Talks = p.Talks[4:5]
	p.Talks[0].Volume, p.Talks[0].By = control.Volume{Connections: 3}, "a"
	return p
}

// uncounted is small without counted bytes.
func uncounted(age time.Duration) control.Picture {
	p := small(age)
	for i := range p.Talks {
		p.Talks[i].Volume = control.Volume{Connections: p.Talks[i].Connections}
	}
	for _, r := range p.Reports {
		r.Traffic.Counted = false
	}
	return p
}

// large is a cluster of 50 hosts with 20 containers each, of which one host is dead.
func large(age time.Duration) control.Picture {
	const hosts, containers = 50, 20
	b := newBuilder(age)
	b.Host = "node-01"
	name := func(i int) string { return fmt.Sprintf("node-%02d", i%hosts+1) }
	for i := range hosts {
		b.host(name(i), true)
	}
	networks := []string{"web", "data", "batch", "monitoring", "shop"}
	for i, n := range networks {
		b.network(n, fmt.Sprintf("10.%d.0.0/18", 64+i))
	}
	for i := range hosts {
		for k := range containers {
			n := networks[(k+i%3)%len(networks)]
			b.container(n, name(i), fmt.Sprintf("%s-%02d-%02d", n, i+1, k), float64((i*7+k*13)%97)*1e4)
		}
	}
	for i := range hosts {
		for _, step := range []int{1, 7, 19} {
			k := i % 3
			n := networks[k]
			from, to := fmt.Sprintf("%s-%02d-00", n, i+1), (i+3*step)%hosts // the same network is first on both
			if to%3 == k {
				b.talk(n, name(i), from, name(to), fmt.Sprintf("%s-%02d-00", n, to+1), "tcp", 8000, 1+i%5, float64((i*step)%50+1)*4e4)
			}
		}
	}
	b.Hosts[16].Alive, b.Hosts[16].Since = false, b.At.Add(-11*time.Minute)
	r := b.Reports[name(16)]
	r.Error, r.Since = "it is not alive", b.At.Add(-11*time.Minute)
	b.Reports[name(16)] = r
	return b.Picture
}
