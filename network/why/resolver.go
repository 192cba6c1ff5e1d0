package why

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"cleat/netns"
	"cleat/netns/files"
	"cleat/netns/find"

	"golang.org/x/net/dns/dnsmessage"
)

const dnsPort = 53

// errNoFiles means that a container's files can't be found, because no process of it is known.
var errNoFiles = errors.New("no process of it is known, so its files can't be read")

// readFile reads a file below /etc of a machine, and returns the path at which it was found.
func (m *machine) readFile(name string) (text, path string, err error) {
	host := filepath.Join("/etc", name)
	switch c := m.container; {
	case m.isHost:
		return readText(host)
	case c.Engine == find.Named: // as ip-netns(8) shows files to its programs
		own := filepath.Join("/etc/netns", c.Name, name)
		if text, path, err = readText(own); errors.Is(err, fs.ErrNotExist) {
			return readText(host)
		}
		return text, path, err
	case c.PID == 0:
		return "", "", errNoFiles
	default:
		return readInside(c.PID, m.ns, host)
	}
}

func readText(path string) (string, string, error) {
	b, err := os.ReadFile(path)
	return string(b), path, err
}

// readInside reads a file of a process, as that sees it.
func readInside(pid int, ns *netns.NS, path string) (string, string, error) {
	root, err := files.Of(pid, ns)
	if err != nil {
		return "", "", err
	}
	defer root.Close()
	if host, err := root.Is("/"); err == nil && host {
		return readText(path)
	}
	const most = 1 << 20
	b, err := root.Read(strings.TrimPrefix(path, "/"), most)
	return string(b), fmt.Sprintf("/proc/%d/root%s", pid, path), err
}

// resolver is what resolv.conf(5) says.
type resolver struct {
	servers []netip.Addr
	search  []string
	ndots   int
}

// parseResolver parses a resolv.conf as libc does: at most three servers, the last list of
// domains counts, and the default is a server on the machine itself.
func parseResolver(text string) resolver {
	const maxServers, maxSearch = 3, 6 // MAXNS and MAXDNSRCH; later glibc has no limit for domains
	r := resolver{ndots: 1}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		switch words[0] {
		case "nameserver":
			if a, err := netip.ParseAddr(words[1]); err == nil && len(r.servers) < maxServers {
				r.servers = append(r.servers, a)
			}
		case "search", "domain":
			r.search = words[1:min(len(words), maxSearch+1)]
		case "options":
			for _, o := range words[1:] {
				if n, ok := strings.CutPrefix(o, "ndots:"); ok {
					r.ndots, _ = strconv.Atoi(n)
				}
			}
		}
	}
	if len(r.servers) == 0 {
		r.servers = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	}
	return r
}

// candidates returns the names that are queried for a name, in order, with a final dot.
func (r resolver) candidates(name string) []string {
	if strings.HasSuffix(name, ".") {
		return []string{name}
	}
	var all []string
	for _, domain := range r.search {
		all = append(all, name+"."+strings.TrimSuffix(domain, ".")+".")
	}
	if strings.Count(name, ".") >= r.ndots {
		return append([]string{name + "."}, all...)
	}
	return append(all, name+".")
}

// hostsEntries returns the addresses of a name in a hosts file.
func hostsEntries(text, name string) []netip.Addr {
	var all []netip.Addr
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) < 2 || !slices.ContainsFunc(words[1:], func(w string) bool { return strings.EqualFold(w, name) }) {
			continue
		}
		if a, err := netip.ParseAddr(words[0]); err == nil {
			all = append(all, a.Unmap())
		}
	}
	return all
}

// reply is what a name server answers.
type reply struct {
	server netip.Addr
	code   dnsmessage.RCode
	addrs  []netip.Addr
	err    error // no answer
}

// lookup queries the servers of a resolver from inside a namespace for the addresses of a name,
// as libc would: the next server if one does not answer, the next candidate if a name does
// not exist.
func (r resolver) lookup(ns *netns.NS, name string, within time.Duration) reply {
	var last reply
	servers := slices.Clone(r.servers)
	for _, candidate := range r.candidates(name) {
		for i := 0; i < len(servers); i++ {
			last = ask(ns, servers[i], candidate, within)
			if last.err == nil && (last.code == dnsmessage.RCodeSuccess || last.code == dnsmessage.RCodeNameError) {
				break
			}
			if last.err != nil && len(servers) > 1 { // it won't answer the next candidate either
				servers = slices.Delete(servers, i, i+1)
				i--
			}
		}
		if last.err != nil || len(last.addrs) > 0 {
			break
		}
	}
	return last
}

// How long a name server may take. A server of this host knows the names of containers at once.
// Other names may have to be found first, for which libc waits as long (RES_TIMEOUT).
const (
	answerWithin        = time.Second
	foreignAnswerWithin = 5 * time.Second
)

// ask queries a server for A and AAAA records of a name.
func ask(ns *netns.NS, server netip.Addr, name string, within time.Duration) reply {
	r := reply{server: server}
	r.err = ns.Do(func() error {
		c, err := net.DialTimeout("udp", netip.AddrPortFrom(server, dnsPort).String(), within)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(within)); err != nil {
			return err
		}
		for _, kind := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA} {
			if err := r.query(c, name, kind); err != nil {
				return err
			}
		}
		return nil
	})
	return r
}

// query sends one query, and adds the answer's addresses.
func (r *reply) query(c net.Conn, name string, kind dnsmessage.Type) error {
	qname, err := dnsmessage.NewName(name)
	if err != nil {
		return err
	}
	id := uint16(rand.Uint32())
	q := dnsmessage.Message{Header: dnsmessage.Header{ID: id, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: qname, Type: kind, Class: dnsmessage.ClassINET}}}
	packed, err := q.Pack()
	if err != nil {
		return err
	}
	if _, err := c.Write(packed); err != nil {
		return err
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return err
		}
		var a dnsmessage.Message
		if a.Unpack(buf[:n]) != nil || a.ID != id || !a.Response {
			continue
		}
		r.code = a.RCode
		for _, rr := range a.Answers {
			switch body := rr.Body.(type) {
			case *dnsmessage.AResource:
				r.addrs = append(r.addrs, netip.AddrFrom4(body.A))
			case *dnsmessage.AAAAResource:
				r.addrs = append(r.addrs, netip.AddrFrom16(body.AAAA))
			}
		}
		return nil
	}
}
