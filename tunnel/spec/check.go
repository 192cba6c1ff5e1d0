package spec

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"cleat/internal/spell"
	"cleat/tunnel/secure"
)

// checker builds a Tunnel from a raw file. An invalid value leaves the field at its
// default, so that the rest can be checked.
type checker struct {
	*findings
	raw *rawFile
	t   *Tunnel
}

// namePattern matches the names of tunnels and paths, which occur in file names, metrics
// and command lines.
var namePattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[a-zA-Z0-9_.-]+$`)
})

// ValidName reports whether name is a valid name of a tunnel.
func ValidName(name string) bool { return validName(name, maxName) }

// validName reports whether name is a valid name of at most maxBytes bytes.
func validName(name string, maxBytes int) bool {
	return len(name) <= maxBytes && namePattern().MatchString(name) && name != "." && name != ".."
}

func nameSyntax(maxBytes int) string {
	return fmt.Sprintf("1…%d of a-z A-Z 0-9 _ . - (but not . or ..)", maxBytes)
}

var deviceSyntax = fmt.Sprintf("1…%d bytes without /, :, %% or spaces", maxInterface)

// validDevice reports whether a device may have the name: dev_valid_name of the kernel,
// and no %, which TUNSETIFF replaces by a number.
func validDevice(name string) bool {
	return name != "" && len(name) <= maxInterface && name != "." && name != ".." && Plain(name) == name &&
		!strings.ContainsFunc(name, func(r rune) bool { return r == '/' || r == ':' || r == '%' || unicode.IsSpace(r) })
}

// checkGeneral checks the settings that depend on nothing else.
func (c *checker) checkGeneral() {
	c.checkNames()
	c.t.Form = Form(c.oneOf("$.form", "form", c.raw.Form, forms, string(Auto)))
	c.t.Scheduler = Scheduler(c.oneOf("$.scheduler", "scheduler", c.raw.Scheduler, schedulers, string(Adaptive)))
	c.t.Datapath = Datapath(c.oneOf("$.datapath", "datapath", c.raw.Datapath, datapaths, string(AutoDatapath)))
	c.t.Port = uint16(c.checkInt("$.port", "port", c.raw.Port, 1, 65535, "", DefaultPort))
	c.checkCopies()
	c.t.Reorder = Reorder{TCP: c.raw.Reorder.TCP, UDP: c.raw.Reorder.UDP}
	c.t.Reorder.Hold = c.checkDuration("$.reorder.hold", "hold", c.raw.Reorder.Hold, MinHold, MaxHold, DefaultHold)
	if !c.t.Reorder.TCP && !c.t.Reorder.UDP && c.isSet("$.reorder.hold") {
		c.warn("$.reorder.hold", "hold has no effect: neither tcp nor udp is put in order")
	}
	if c.raw.Queue != 0 {
		c.t.Queue = c.checkDuration("$.queue", "queue", c.raw.Queue, MinQueue, MaxQueue, 0)
	}
	c.checkCompat()
	c.checkMetrics()
}

func (c *checker) checkNames() {
	name, device := c.raw.Name, c.raw.Device
	switch {
	case c.isMissing("$.name"):
		c.reject("$.name", nameSyntax(maxName), "name is missing")
	case c.isSet("$.name") && !validName(name, maxName):
		c.reject("$.name", nameSyntax(maxName), "name %q", name)
	default:
		c.t.Name = name
	}
	switch {
	case c.isSet("$.device") && !validDevice(device):
		c.reject("$.device", deviceSyntax, "device %q", device)
	case c.isMissing("$.device") && c.t.Name != "" && !validDevice(name):
		c.fail("$.name", "device is missing, and the name %q is no valid device name: want %s", name, deviceSyntax).Hint = "add one, e.g. device: cleat0"
	case c.isMissing("$.device"):
		c.t.Device = c.t.Name
	default:
		c.t.Device = device
	}
}

// oneOf returns word if it is one of known, and otherwise fallback.
func (c *checker) oneOf(path, setting, word string, known []string, fallback string) string {
	if slices.Contains(known, word) {
		return word
	}
	if c.isSet(path) {
		e := c.fail(path, "unknown %s %q", setting, word)
		e.Allowed, e.Hint = strings.Join(known, ", "), spell.Hint(word, known)
	}
	return fallback
}

// checkInt returns a number within limits, and otherwise fallback.
func (c *checker) checkInt(path, setting string, v, lower, upper int, unit string, fallback int) int {
	if !c.isSet(path) {
		return fallback
	}
	if v < lower || v > upper {
		c.reject(path, fmt.Sprintf("%d…%d%s", lower, upper, unit), "%s %d", setting, v)
		return fallback
	}
	return v
}

// checkDuration returns a valid duration, and otherwise fallback.
func (c *checker) checkDuration(path, setting string, d, lower, upper, fallback time.Duration) time.Duration {
	if d < lower || d > upper {
		c.reject(path, fmt.Sprintf("%v…%v", lower, upper), "%s %v", setting, d)
		return fallback
	}
	return d
}

func (c *checker) checkCopies() {
	const want = "all or 2"
	switch word := c.raw.Duplicate; {
	case !c.isSet("$.duplicate"):
	case word != "all" && word != "2":
		c.reject("$.duplicate", want, "duplicate %q", word)
	case c.t.Scheduler != Duplicate && !c.doc.Wrong("$.scheduler"):
		c.fail("$.duplicate", "duplicate is a setting of the scheduler duplicate, and the scheduler is %s", c.t.Scheduler).Hint = "add `scheduler: duplicate`, or remove duplicate"
	case word == "2":
		c.t.Copies = 2
	}
}

func (c *checker) checkCompat() {
	c.t.Compat = CompatForm{Sequence: c.raw.Compat.Sequence}
	if c.isSet("$.compat.key") {
		if c.raw.Compat.Key > 1<<32-1 {
			c.reject("$.compat.key", "0…4294967295", "compat key %d", c.raw.Compat.Key)
		}
		c.t.Compat.HasKey, c.t.Compat.Key = true, uint32(c.raw.Compat.Key)
	}
	switch {
	case c.isMissing("$.compat"):
	case c.t.Form == Native:
		c.warn("$.compat", "compat has no effect: the form is native")
	case c.raw.Key != nil:
		c.warn("$.compat", "compat has no effect: with a key the form is native")
	}
	if !c.t.Compat.Sequence && c.t.Form == Compat {
		c.warn("$.compat.sequence", "without sequence numbers nothing is put in order")
	}
}

func (c *checker) checkMetrics() {
	const want = "an absolute path, or a loopback address and a port, e.g. 127.0.0.1:9100"
	text := c.raw.Metrics
	switch {
	case !c.isSet("$.metrics"):
	case strings.HasPrefix(text, "/"):
		if len(text) > maxSocketPath {
			c.reject("$.metrics", fmt.Sprintf("at most %d bytes", maxSocketPath), "metrics: the path has %d bytes", len(text))
		}
		if Plain(text) != text {
			c.reject("$.metrics", "a path of printable characters", "metrics %q", text)
		}
		c.t.Metrics = Metrics{"unix", filepath.Clean(text)}
	default:
		address := text
		if port, ok := strings.CutPrefix(text, "localhost:"); ok {
			address = "127.0.0.1:" + port
		}
		at, err := netip.ParseAddrPort(address)
		if err != nil || !at.Addr().IsLoopback() || at.Port() == 0 {
			c.reject("$.metrics", want, "metrics %q", text)
		}
		c.t.Metrics = Metrics{"tcp", at.String()}
	}
}

func (c *checker) checkKey(dir string, open Opener) {
	raw := c.raw.Key
	if raw == nil {
		return
	}
	if c.t.Form == Compat {
		c.fail("$.form", "the form compat can't use a key: it is neither encrypted nor authenticated").Hint = "remove the key, or use `form: native`"
	}
	c.t.Form = Native
	c.t.Key = &Key{}
	c.checkPrivateKey(raw.Private, dir, open)
	switch peer, err := secure.ParsePublicKey(raw.Peer); {
	case c.isMissing("$.key.peer"):
		c.reject("$.key", "the public key that `cleat tunnel key` printed at the other end", "peer is missing")
	case !c.isSet("$.key.peer"):
	case err != nil:
		// Don't repeat the text: it may be a private key in the wrong place.
		c.fail("$.key.peer", "peer: %v", err).Allowed = keySyntax
	case c.t.Key.File != "" && c.t.Key.Private.Public() == peer:
		c.fail("$.key.peer", "peer is this end's own public key").Hint = "use the other end's public key"
	default:
		c.t.Key.Peer = peer
	}
}

func (c *checker) checkPrivateKey(name, dir string, open Opener) {
	const path = "$.key.private"
	if c.isMissing(path) || name == "" && c.isSet(path) {
		c.reject("$.key", "the name of the file with this end's private key", "private is missing")
		return
	}
	if !c.isSet(path) {
		return
	}
	if Plain(name) != name {
		c.reject(path, "a file name of printable characters", "private %q", name)
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
	c.fail(path, "%v", err).Hint = KeyHint(file, err)
}

// checkMTU returns a valid MTU of a device or path with IPv4 or IPv6, and otherwise 0.
func (c *checker) checkMTU(path string, mtu int, v6 bool) int {
	lower := minMTU4
	if v6 {
		lower = minMTU6
	}
	return c.checkInt(path, "mtu", mtu, lower, MaxMTU, " bytes", 0)
}
