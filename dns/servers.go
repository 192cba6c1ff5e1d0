package dns

import (
	"bytes"
	"cmp"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"
)

const (
	// lookEvery is the least time between reads of resolv.conf. The first query a second
	// after a change notices it.
	lookEvery = time.Second
	// maxMisses is how often in a row a server must be overtaken to be asked last. Once
	// may be a name that takes long to find.
	maxMisses = 2
	// A server that is asked last is probed after probeFirst and, while it does not
	// answer, after twice as long each time, up to probeLast.
	probeFirst = 5 * time.Second
	probeLast  = time.Minute
)

// server is a server with its record. The servers type guards its fields.
type server struct {
	addr    netip.AddrPort
	misses  int // since its last answer
	down    bool
	probeAt time.Time
	wait    time.Duration // until the next probe
}

// servers is the list of servers and how well they answer. It is safe for concurrent use.
type servers struct {
	open  func() (io.ReadCloser, error)
	index func(link string) (int, error)
	fixed []netip.AddrPort // replace those in resolv.conf
	skip  func(netip.AddrPort) bool

	mu     sync.Mutex
	looked time.Time
	text   []byte // of resolv.conf
	conf   ResolvConf
	list   []*server
	turn   int            // for the option rotate
	links  map[string]int // interface indexes by name
}

func newServers(cfg Config) *servers {
	s := &servers{open: cfg.ResolvConf, index: linkIndex, fixed: slices.Clone(cfg.Servers), skip: cfg.Skip, links: map[string]int{}}
	if s.open == nil {
		s.open = func() (io.ReadCloser, error) { return os.Open("/etc/resolv.conf") }
	}
	s.conf, _ = ParseResolvConf(bytes.NewReader(nil))
	s.take()
	s.look(time.Now())
	return s
}

func linkIndex(link string) (int, error) {
	l, err := net.InterfaceByName(link)
	if err != nil {
		return 0, err
	}
	return l.Index, nil
}

// numbered returns a server's address with the index of an interface in place of its
// name. Package net would look up the index on each dial, which a sealed process cannot
// do. An index that was found once is remembered.
func (s *servers) numbered(a netip.AddrPort) netip.AddrPort {
	zone := a.Addr().Zone()
	if _, err := strconv.Atoi(zone); zone == "" || err == nil {
		return a
	}
	if i, err := s.index(zone); err == nil {
		s.links[zone] = i
	}
	if i, ok := s.links[zone]; ok {
		a = netip.AddrPortFrom(a.Addr().WithZone(strconv.Itoa(i)), a.Port())
	}
	return a
}

// take rebuilds the list of servers after conf has changed. Servers that stay keep their
// records.
func (s *servers) take() {
	addrs := s.fixed
	if len(addrs) == 0 {
		addrs = s.conf.Servers
	}
	if len(addrs) == 0 { // resolv.conf(5): use the name server on the local machine
		addrs = []netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), dnsPort)}
	}
	old := s.list
	s.list = nil
	for _, a := range addrs {
		a = s.numbered(a)
		if find(s.list, a) == nil { // a server that is listed twice is asked once
			s.list = append(s.list, cmp.Or(find(old, a), &server{addr: a}))
		}
	}
}

// look reads resolv.conf unless that was done less than lookEvery ago.
func (s *servers) look(now time.Time) {
	if !s.looked.IsZero() && now.Sub(s.looked) < lookEvery {
		return
	}
	s.looked = now
	f, err := s.open()
	if err != nil {
		return
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxResolvConfBytes))
	if err != nil || s.text != nil && bytes.Equal(text, s.text) {
		return
	}
	conf, err := ParseResolvConf(bytes.NewReader(text))
	if err != nil {
		return
	}
	s.text, s.conf = text, conf
	s.take()
}

// plan describes how one query is sent.
type plan struct {
	servers  []netip.AddrPort // in the order of asking; none if all are skipped
	probe    []netip.AddrPort // to be probed besides
	tries    int              // of all servers together
	deadline time.Duration    // for the whole query
	tcp      bool
}

// plan returns the plan for a new query.
func (s *servers) plan(now time.Time) plan {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.look(now)
	p := plan{tcp: s.conf.TCP}
	var last []netip.AddrPort
	for i := range s.list {
		o := s.list[(i+s.turn)%len(s.list)]
		if s.skip != nil && s.skip(o.addr) {
			continue
		}
		if !o.down {
			p.servers = append(p.servers, o.addr)
			continue
		}
		last = append(last, o.addr)
		if !now.Before(o.probeAt) {
			p.probe = append(p.probe, o.addr)
			o.wait = min(2*o.wait, probeLast)
			o.probeAt = now.Add(o.wait)
		}
	}
	if len(p.servers) == 0 { // they are asked anyway
		p.probe = nil
	}
	p.servers = append(p.servers, last...)
	if s.conf.Rotate {
		s.turn = (s.turn + 1) % len(s.list)
	}
	attempts := max(s.conf.Attempts, 1)
	p.tries = min(attempts*len(p.servers), max(maxTries, len(p.servers)))
	p.deadline = min(max(s.conf.Timeout, time.Second)*time.Duration(attempts), maxDeadline)
	return p
}

// answered records that a server works.
func (s *servers) answered(addr netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := find(s.list, addr); o != nil {
		*o = server{addr: addr}
	}
}

// missed records that a server did not answer in time or, with gone, that nobody listens
// there.
func (s *servers) missed(now time.Time, gone bool, addr netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := find(s.list, addr)
	if o == nil {
		return // resolv.conf has changed
	}
	if o.misses++; !o.down && (gone || o.misses >= maxMisses) {
		o.down, o.wait, o.probeAt = true, probeFirst, now.Add(probeFirst)
	}
}

// find returns the server with an address, or nil.
func find(list []*server, addr netip.AddrPort) *server {
	i := slices.IndexFunc(list, func(o *server) bool { return o.addr == addr })
	if i < 0 {
		return nil
	}
	return list[i]
}
