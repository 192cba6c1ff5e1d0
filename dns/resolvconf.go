package dns

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	dnsPort = 53

	// Defaults and limits of resolv.conf(5): RES_TIMEOUT, RES_MAXRETRANS, RES_DFLRETRY,
	// RES_MAXRETRY, RES_MAXNDOTS in resolv.h. The C library uses three servers; a few
	// more do no harm.
	defaultTimeout  = 5 * time.Second
	maxTimeout      = 30 * time.Second
	defaultAttempts = 2
	maxAttempts     = 5
	defaultNdots    = 1
	maxNdots        = 15
	maxServers      = 8

	maxResolvConfBytes = 1 << 16
)

// ResolvConf is the content of a resolv.conf (resolv.conf(5)).
type ResolvConf struct {
	Servers  []netip.AddrPort // at most 8, with zones; none means 127.0.0.1
	Search   []string
	Ndots    int           // a name with this many dots is tried as it is first; Guest treats 0 as 1
	Timeout  time.Duration // of one try
	Attempts int           // tries of each server
	Rotate   bool          // use servers in turn
	EDNS0    bool          // programs use EDNS
	TCP      bool          // "use-vc": ask servers over TCP
}

// ParseResolvConf parses the first 64 KiB of a resolv.conf. Like the C library, it
// ignores what it does not understand. It returns read errors only.
func ParseResolvConf(r io.Reader) (ResolvConf, error) {
	c := ResolvConf{Ndots: defaultNdots, Timeout: defaultTimeout, Attempts: defaultAttempts}
	lines := bufio.NewScanner(io.LimitReader(r, maxResolvConfBytes))
	lines.Buffer(nil, maxResolvConfBytes+1)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 2 {
			continue
		}
		switch args := words[1:]; words[0] {
		case "nameserver":
			c.addServer(args[0])
		case "domain":
			c.Search = names(args[:1])
		case "search":
			c.Search = names(args)
		case "options":
			for _, o := range args {
				c.option(o)
			}
		}
	}
	return c, lines.Err()
}

func (c *ResolvConf) addServer(s string) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		return
	}
	if a.IsUnspecified() { // what connect(2) makes of it
		a = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		if strings.Contains(s, ":") {
			a = netip.IPv6Loopback()
		}
	}
	server := netip.AddrPortFrom(a.Unmap(), dnsPort)
	if len(c.Servers) < maxServers && !slices.Contains(c.Servers, server) {
		c.Servers = append(c.Servers, server)
	}
}

// names returns the words up to a comment, without final dots.
func names(words []string) []string {
	var out []string
	for _, w := range words {
		if w[0] == '#' || w[0] == ';' {
			break
		}
		if w = strings.TrimSuffix(w, "."); w != "" {
			out = append(out, w)
		}
	}
	return out
}

func (c *ResolvConf) option(o string) {
	key, value, _ := strings.Cut(o, ":")
	n, err := strconv.Atoi(value)
	number := err == nil && n >= 0
	switch {
	case key == "ndots" && number:
		c.Ndots = min(n, maxNdots)
	case key == "timeout" && number:
		c.Timeout = min(time.Duration(min(n, 1000))*time.Second, maxTimeout)
	case key == "attempts" && number:
		c.Attempts = min(n, maxAttempts)
	case o == "rotate":
		c.Rotate = true
	case o == "edns0":
		c.EDNS0 = true
	case o == "use-vc":
		c.TCP = true
	}
}

// Guest returns a resolv.conf for the guest that names our resolvers and keeps the search
// list and the options about names. It names no other server, because that would answer
// differently.
func (c ResolvConf) Guest(resolvers ...netip.Addr) []byte {
	var b bytes.Buffer
	if len(c.Search) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(c.Search, " "))
	}
	for _, r := range resolvers {
		fmt.Fprintf(&b, "nameserver %s\n", r)
	}
	var options []string
	if c.Ndots > defaultNdots {
		options = append(options, "ndots:"+strconv.Itoa(c.Ndots))
	}
	if c.EDNS0 {
		options = append(options, "edns0")
	}
	if len(options) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(options, " "))
	}
	return b.Bytes()
}
