package spec

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"cleat/tunnel/secure"
)

// checker makes a tunnel of what is given. What is wrong leaves the tunnel's
// field at its default, so that the rest can be checked.
type checker struct {
	*findings
	given *given
	t     *Tunnel
}

// nameText is what names of tunnels and paths are made of: they stand in file
// names, in metrics and on command lines.
var nameText = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[a-zA-Z0-9_.-]+$`)
})

// ValidName reports whether a name can be a tunnel's.
func ValidName(name string) bool { return validName(name, maxName) }

// validName reports whether a name can be a tunnel's or a path's.
func validName(name string, most int) bool {
	return len(name) <= most && nameText().MatchString(name) && name != "." && name != ".."
}

// wantName says what a name looks like.
func wantName(most int) string {
	return fmt.Sprintf("1…%d of a-z A-Z 0-9 _ . - (not . or .. alone)", most)
}

// wantDevice says what a device's name looks like.
var wantDevice = fmt.Sprintf("1…%d bytes without /, :, %% and spaces", maxInterface)

// validDevice tells whether a device may have the name: dev_valid_name of the
// kernel's, and no %, from which TUNSETIFF makes a number.
func validDevice(name string) bool {
	return name != "" && len(name) <= maxInterface && name != "." && name != ".." && Plain(name) == name &&
		!strings.ContainsFunc(name, func(r rune) bool { return r == '/' || r == ':' || r == '%' || unicode.IsSpace(r) })
}

// checkTop checks what stands at the top and by itself.
func (c *checker) checkTop() {
	c.checkNames()
	c.t.Form = Form(c.word("$.form", "form", c.given.Form, forms, string(Auto)))
	c.t.Scheduler = Scheduler(c.word("$.scheduler", "scheduler", c.given.Scheduler, schedulers, string(Adaptive)))
	c.t.Port = c.port("$.port", c.given.Port, DefaultPort)
	c.checkCopies()
	c.t.Reorder = Reorder{TCP: c.given.Reorder.TCP, UDP: c.given.Reorder.UDP}
	c.t.Reorder.Hold = c.duration("$.reorder.hold", "hold", c.given.Reorder.Hold, MinHold, MaxHold, DefaultHold)
	if !c.t.Reorder.TCP && !c.t.Reorder.UDP && c.findings.given("$.reorder.hold") {
		c.warn("$.reorder.hold", "hold does nothing: neither tcp nor udp is put in order")
	}
	if c.given.Queue != 0 {
		c.t.Queue = c.duration("$.queue", "queue", c.given.Queue, MinQueue, MaxQueue, 0)
	}
	c.checkCompat()
	c.checkMetrics()
}

func (c *checker) checkNames() {
	name, device := c.given.Name, c.given.Device
	switch {
	case c.missing("$.name"):
		c.wrong("$.name", wantName(maxName), "name is missing")
	case c.findings.given("$.name") && !validName(name, maxName):
		c.wrong("$.name", wantName(maxName), "name %q", name)
	default:
		c.t.Name = name
	}
	switch {
	case c.findings.given("$.device") && !validDevice(device):
		c.wrong("$.device", wantDevice, "device %q", device)
	case c.missing("$.device") && c.t.Name != "" && !validDevice(name):
		c.refuse("$.name", "device is missing, and the name %q can't be a device's: want %s", name, wantDevice).Hint = "give one, e.g. device: cleat0"
	case c.missing("$.device"):
		c.t.Device = c.t.Name
	default:
		c.t.Device = device
	}
}

// word checks that a word is one of known; else it is the default.
func (c *checker) word(path, what, word string, known []string, otherwise string) string {
	if slices.Contains(known, word) {
		return word
	}
	if c.findings.given(path) {
		c.unknown(path, what, word, known)
	}
	return otherwise
}

// port checks a UDP port; else it is the default.
func (c *checker) port(path string, port int, otherwise uint16) uint16 {
	if !c.findings.given(path) {
		return otherwise
	}
	if port < 1 || port > 65535 {
		c.wrong(path, "1…65535", "port %d", port)
		return otherwise
	}
	return uint16(port)
}

// duration checks a duration; else it is the default.
func (c *checker) duration(path, what string, d, least, most, otherwise time.Duration) time.Duration {
	if d < least || d > most {
		c.wrong(path, fmt.Sprintf("%v…%v", least, most), "%s %v", what, d)
		return otherwise
	}
	return d
}

// checkCopies checks how many paths carry each packet.
func (c *checker) checkCopies() {
	const want = "all or 2"
	switch word := c.given.Duplicate; {
	case !c.findings.given("$.duplicate"):
	case word != "all" && word != "2":
		c.wrong("$.duplicate", want, "duplicate %q", word)
	case c.t.Scheduler != Duplicate && !c.doc.Wrong("$.scheduler"):
		c.refuse("$.duplicate", "duplicate is for the scheduler duplicate, and this one is %s", c.t.Scheduler).Hint = "add `scheduler: duplicate`, or remove it"
	case word == "2":
		c.t.Copies = 2
	}
}

func (c *checker) checkCompat() {
	c.t.Compat = CompatForm{Sequence: c.given.Compat.Sequence}
	if c.findings.given("$.compat.key") {
		if c.given.Compat.Key > 1<<32-1 {
			c.wrong("$.compat.key", "0…4294967295", "compat key %d", c.given.Compat.Key)
		}
		c.t.Compat.HasKey, c.t.Compat.Key = true, uint32(c.given.Compat.Key)
	}
	switch {
	case c.missing("$.compat"):
	case c.t.Form == Native:
		c.warn("$.compat", "compat does nothing: the form is native")
	case c.given.Key != nil:
		c.warn("$.compat", "compat does nothing: with a key the form is native")
	}
	if !c.t.Compat.Sequence && c.t.Form == Compat {
		c.warn("$.compat.sequence", "without sequence numbers nothing is put in order")
	}
}

// checkMetrics checks where the counters are to be found.
func (c *checker) checkMetrics() {
	const want = "an absolute path, or an address of loopback and a port, e.g. 127.0.0.1:9100"
	text := c.given.Metrics
	switch host, port, isPort := cutLast(text, ':'); {
	case !c.findings.given("$.metrics"):
	case strings.HasPrefix(text, "/"):
		if len(text) > maxSocket {
			c.wrong("$.metrics", fmt.Sprintf("at most %d bytes", maxSocket), "metrics: the path has %d bytes", len(text))
		}
		if Plain(text) != text {
			c.wrong("$.metrics", "a path that can be printed", "metrics %q", text)
		}
		c.t.Metrics = Metrics{"unix", filepath.Clean(text)}
	case !isPort || strings.Contains(text, "/"):
		c.wrong("$.metrics", want, "metrics %q", text)
	default:
		if host == "localhost" {
			host = "127.0.0.1"
		}
		at, err := netip.ParseAddrPort(host + ":" + port)
		if err != nil || !at.Addr().IsLoopback() || at.Port() == 0 {
			c.wrong("$.metrics", want, "metrics %q", text)
		}
		c.t.Metrics = Metrics{"tcp", at.String()}
	}
}

// cutLast cuts a text at the last of a byte.
func cutLast(text string, at byte) (before, after string, found bool) {
	i := strings.LastIndexByte(text, at)
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+1:], true
}

// checkKey reads the private key and checks both.
func (c *checker) checkKey(dir string, open Opener) {
	g := c.given.Key
	if g == nil {
		return
	}
	if c.t.Form == Compat {
		c.refuse("$.form", "the form compat is neither encrypted nor authenticated, and there is a key").Hint = "remove the key, or use `form: native`"
	}
	c.t.Form = Native
	c.t.Key = &Key{}
	c.checkPrivate(g.Private, dir, open)
	switch peer, err := secure.ParsePublicKey(g.Peer); {
	case c.missing("$.key.peer"):
		c.wrong("$.key", "the other end's public key, which `cleat tunnel key` printed there", "peer is missing")
	case !c.findings.given("$.key.peer"):
	case err != nil:
		// The text is not repeated: it may be a private key in the wrong place.
		c.refuse("$.key.peer", "peer: %v", err).Allowed = wantKey
	case c.t.Key.File != "" && c.t.Key.Private.Public() == peer:
		c.refuse("$.key.peer", "peer is this end's own public key").Hint = "it is the other end's that belongs here"
	default:
		c.t.Key.Peer = peer
	}
}

// checkPrivate reads the private key's file.
func (c *checker) checkPrivate(name, dir string, open Opener) {
	const path = "$.key.private"
	if c.missing(path) || name == "" && c.findings.given(path) {
		c.wrong("$.key", "the name of a file with this end's private key", "private is missing")
		return
	}
	if !c.findings.given(path) {
		return
	}
	if Plain(name) != name {
		c.wrong(path, "a file's name that can be printed", "private %q", name)
		return
	}
	file := name
	if !filepath.IsAbs(file) {
		file = filepath.Join(dir, file)
	}
	key, err := ReadKey(file, open)
	if err == nil {
		c.t.Key.File, c.t.Key.Private = file, key
		return
	}
	c.refuse(path, "%v", err).Hint = KeyHint(file, err)
}

// mtu checks an MTU that was given; 0 was not.
func (c *checker) mtu(path string, mtu, least int) int {
	switch {
	case !c.findings.given(path):
		return 0
	case mtu < least || mtu > MaxMTU:
		c.wrong(path, strconv.Itoa(least)+"…"+strconv.Itoa(MaxMTU)+" bytes", "mtu %d", mtu)
		return 0
	}
	return mtu
}
